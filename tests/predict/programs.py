"""Programs traced on a device in sizes only."""

from collections.abc import Iterator
from contextlib import contextmanager

from ampsweep.observe.ledger import Ledger
from ampsweep.observe.step import OperatorTracer, Trace, _traced
from ampsweep.predict.fake_device import CPU, FakeDevice
from ampsweep.predict.kernel_sizes import scratch_of


@contextmanager
def trace_program(device: FakeDevice) -> Iterator[Trace]:
    """Trace a program whose parameters and optimizers are not known beforehand: with sizes, but without categories."""
    is_host = None if device.target.kind == "cpu" else False
    ledger = Ledger(CPU, fake=device.kernels, is_host=is_host)
    trace, mode = Trace(ledger), OperatorTracer(ledger, None if is_host is None else scratch_of(device.target))
    with mode:
        yield trace
    trace.result = _traced(ledger, mode)
    ledger.close()
