"""Trace of one training step, taken in place: its memory by category and its operations by dtype."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampsweep.memory_categories import MemoryCategory
from ampsweep.tracing.ledger import Ledger, Lives, tensors_in
from ampsweep.tracing.operator_tracer import OperatorTracer, Scratch


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The memory and arithmetic of one step. Bytes are those of tensors, without rounding and kernels' workspaces."""

    peak_bytes: int
    peak: dict[MemoryCategory, int]
    """Bytes by category when the most were alive; they add up to `peak_bytes`."""
    end_of_forward: dict[MemoryCategory, int]
    """Bytes by category before backward; with several backward passes (micro-batches), before the one with the most.
    A pass within a loss, whose gradients do not go to the parameters, belongs to forward."""
    kept: dict[MemoryCategory, int]
    """Bytes by category that the step allocated and did not free: new optimizer state, its loss, and leaks."""
    held_bytes: int
    """Bytes of tensors that the step used but did not make."""
    num_operators: int
    """Operators dispatched, including views."""
    flops: dict[str, int]
    """Operations of matrix multiplications, convolutions and attention by the dtype of their operands."""
    recomputed_flops: dict[str, int]
    """The part of `flops` done a second time: by activation checkpointing, and by backward of fused attention."""
    outputs: dict[str, int]
    """Number of new floating-point tensors that operators returned, by dtype."""
    forward_flops: dict[str, int] = field(default_factory=dict)
    """The part of `flops` done outside backward."""
    flops_apart: dict[str, int] = field(default_factory=dict)
    """The part of `forward_flops` done apart (see `trace_step`)."""

    def __post_init__(self) -> None:
        assert sum(self.peak.values()) == self.peak_bytes

    @property
    def model_flops(self) -> dict[str, int]:
        """Operations of the model itself by dtype, without those done a second time."""
        return {dtype: count - self.recomputed_flops.get(dtype, 0) for dtype, count in self.flops.items()}


class Trace:
    """The trace of a step: its moments while it runs, and its result once it is over."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._result: TracedStep | None = None

    @property
    def moment(self) -> int:
        """Births and deaths of storages so far."""
        return self._ledger.moment

    @property
    def end_of_forward(self) -> int:
        """The moment of `TracedStep.end_of_forward`."""
        return self._ledger.marked_moment

    @property
    def lives(self) -> Lives:
        """Every allocation so far."""
        return self._ledger.lives()

    @property
    def result(self) -> TracedStep:
        """The traced step; of a step that failed, the part before the failure."""
        assert self._result is not None, "the traced step is not over"
        return self._result


@contextmanager
def trace_step(
    model: nn.Module,
    *optimizers: Optimizer,
    held: Iterable[Tensor] = (),
    data: Iterable[Tensor] = (),
    counted: type[Tensor] = Tensor,
    scratch: Scratch | None = None,
    is_apart: Callable[[], bool] | None = None,
) -> Iterator[Trace]:
    """Trace the optimizer step taken inside; it computes bitwise the same as without a trace.

    Categories on the device of the model's parameters:
    - parameters, gradients, optimizer_state: as named, from their first byte on;
    - activations: results computed from parameters while autograd records, also where a checkpoint recomputes them,
      gradients within a loss that have a graph of their own, and the forward of custom autograd functions;
    - autocast_weights: copies of parameters in another dtype made while autograd records;
    - temporary: everything made while autograd does not record, in backward and in the optimizer;
    - data: on an accelerator, the data set that is resident there;
    - other: buffers, batches and all else.

    On a host, batches that `fed` has read count by their own bytes, and nothing else does that only feeds them. Memory
    that kernels allocate for themselves is not seen. A compiled model runs eagerly while it is traced, and computes the
    eager model's values. In the very first step the optimizer has no state until its end: trace a later one.

    Args:
        held: tensors that exist from the beginning, whether the step uses them or not.
        data: the same of a data set on an accelerator, as far as it is known.
        counted: the class of tensors that are on the device.
        scratch: bytes of kernels' own memory, as far as known; it appears in the trace's lives only.
        is_apart: tells of an operator that is called now whether its operations are counted apart, too.
    """
    parameters = [*model.parameters()]
    parameters += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert parameters, "a model without parameters cannot be trained"
    ledger = Ledger(parameters[0].device, counted=counted)
    _hold_all(ledger, data, "data")
    _hold_all(ledger, (*held, *model.buffers()), "other")
    del data, held  # a batch that was there from the beginning is to be freed when the step drops it
    for parameter in parameters:
        ledger.hold(parameter, "parameters")
        _hold_gradient(ledger, parameter)
    _hold_state(ledger, optimizers)
    accumulated = partial(_on_accumulation, ledger)
    trace, mode = Trace(ledger), OperatorTracer(ledger, scratch, is_apart)
    try:
        # Compiled code is invisible to a dispatch mode, and torch.compile gives up for good on what it meets in one.
        with ExitStack() as hooks, torch.compiler.set_stance("force_eager"), mode.recorded.following(), mode:
            for parameter in {id(p): p for p in parameters if p.requires_grad}.values():
                handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
            yield trace
    finally:
        _hold_state(ledger, optimizers)
        trace._result = _traced(ledger, mode)
        ledger.close()


@contextmanager
def trace_program(
    device: torch.device, *, counted: type[Tensor] = Tensor, scratch: Scratch | None = None
) -> Iterator[Trace]:
    """Trace a program whose parameters and optimizers are not known beforehand: with sizes, but without categories."""
    ledger = Ledger(device, counted=counted)
    trace, mode = Trace(ledger), OperatorTracer(ledger, scratch)
    try:
        with mode:
            yield trace
    finally:
        trace._result = _traced(ledger, mode)
        ledger.close()


def _hold_all(ledger: Ledger, tensors: Iterable[Tensor], category: MemoryCategory) -> None:
    for tensor in tensors:
        ledger.hold(tensor, category)


def _hold_gradient(ledger: Ledger, parameter: Tensor) -> None:
    if parameter.grad is not None:
        ledger.hold(parameter.grad, "gradients")


def _on_accumulation(ledger: Ledger, parameter: Tensor) -> None:
    ledger.mark()  # a backward pass that reaches parameters is the training's own
    _hold_gradient(ledger, parameter)


def _hold_state(ledger: Ledger, optimizers: tuple[Optimizer, ...]) -> None:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                ledger.hold(tensor, "optimizer_state")


def _traced(ledger: Ledger, operators: OperatorTracer) -> TracedStep:
    return TracedStep(
        peak_bytes=ledger.peak_bytes,
        peak=ledger.at_peak(),
        end_of_forward=ledger.at_mark(),
        kept=ledger.kept(),
        held_bytes=ledger.held_bytes,
        num_operators=operators.num_operators,
        flops=_by_name(operators.flops),
        recomputed_flops=_by_name(operators.recomputed_flops),
        forward_flops=_by_name(operators.forward_flops),
        flops_apart=_by_name(operators.flops_apart),
        outputs=_by_name(operators.outputs),
    )


def _by_name(counts: Counter[torch.dtype]) -> dict[str, int]:
    return {str(dtype).removeprefix("torch."): count for dtype, count in counts.items()}
