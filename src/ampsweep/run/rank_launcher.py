"""A run on several ranks of this machine, from the process that starts them."""

import math
import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Final

from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import ChildExit, run_together
from ampsweep.launch.processes import SLOW_IMPORTS, start_fork_server
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.parallel.base import RankFault
from ampsweep.parallel.group import served_store
from ampsweep.parallel.rank_environment import place_variables
from ampsweep.precision.precision import unsupported_reason
from ampsweep.records import RunRecord, now
from ampsweep.records.outcome import OOM_KILLED, OUTCOMES, Status
from ampsweep.run.ending import UntrainedError, end_untrained
from ampsweep.run.failure import kept_error, record_so_far, write_error
from ampsweep.run.lifecycle import Send
from ampsweep.run.messages import Say
from ampsweep.run.rank import num_processes
from ampsweep.run.request import RunRequest
from ampsweep.training.components.device import run_devices, taken_devices

_RANK: Final = NamedFunction[Status]("ampsweep.run.rank:run_rank")


def run_on_ranks(request: RunRequest, *, send: Send, stop: StopRequest) -> Status:
    """Train on several ranks and record the outcome; RuntimeError: the run failed."""
    config = request.config
    first = run_devices(config.device)[0]
    unsupported = unsupported_reason(config.precision, first.device)
    if unsupported is not None:
        return end_untrained(request, first, UntrainedError("unsupported", unsupported), send)
    number = num_processes(config.parallel, config.device)
    if first.device.type == "cpu":  # else torch's profiler logs each block of other threads
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    faults: list[RankFault] = []

    def on_message(message: object) -> None:
        faults.append(message) if isinstance(message, RankFault) else send(message)

    with taken_devices(config.device, number, lambda text: send(Say(text)), stop) as taken:
        start_fork_server([*SLOW_IMPORTS, "torch.distributed.fsdp", "torch.distributed.tensor"])
        store = served_store()
        places = [os.environ | place_variables(rank, number, store.port) for rank in range(number)]
        watch = partial(bool, faults)
        ranks = run_together(_RANK, (request, taken), places, on_message=on_message, stop=stop, watch=watch)
    fault = faults[0] if faults else None
    if fault is None or fault.is_guess:
        fault = _sudden_end(ranks, "interrupted" if stop.requested else "failed") or fault
    return _finished(request, fault, number).status


def _sudden_end(ranks: Sequence[ChildExit[Status]], status: Status) -> RankFault | None:
    """The fault of the rank that was lost first; a process that ended without an error gives `status`."""
    rank, first = min(enumerate(ranks), key=lambda numbered: numbered[1].lost_s)
    if math.isinf(first.lost_s):
        return None
    if first.error != first.sentence:  # it has sent its traceback
        return RankFault(rank=rank, status="failed", error=first.sentence or "", traceback=first.error)
    if first.exitcode < 0:
        oom = OOM_KILLED if first.oom_killed else None
        error = f"it was killed by {signal.Signals(-first.exitcode).name}" if oom is None else oom.sentence
        return RankFault(rank=rank, status=status if oom is None else "oom", error=error, oom=oom)
    code = f" with exit code {first.exitcode}" if first.exitcode else ""
    return RankFault(rank=rank, status=status, error=f"its process ended{code} without a result")


def _finished(request: RunRequest, fault: RankFault | None, world_size: int) -> RunRecord:
    record = record_so_far(request, world_size=world_size)
    if fault is None:
        return record
    # A loss after the training, during the prediction or the upload, does not change the outcome.
    if record.status not in OUTCOMES and not (fault.status == "interrupted" and record.ended_at):
        record.status, record.error, record.oom = fault.status, fault.sentence, fault.oom
        record.ended_at = record.ended_at or now()
        record.write(request.directory)
    if record.status == "failed":
        if not kept_error(request.directory):
            write_error(request.directory, fault.traceback or fault.sentence, request.config)
        raise RuntimeError(fault.sentence)
    return record
