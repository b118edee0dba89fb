"""A run on several ranks of this machine, seen from the process that starts them."""

import os
import signal
from collections.abc import Sequence
from typing import Final

from ampsweep.launch.child import NamedFunction
from ampsweep.launch.processes import num_oom_kills
from ampsweep.launch.signals import StopRequest
from ampsweep.parallel.faults import RankFault
from ampsweep.precision.precision import unsupported_reason
from ampsweep.record import RunRecord
from ampsweep.record.outcome import OOM_KILLED, OUTCOMES, Status
from ampsweep.run.ending import Untrained, end_untrained
from ampsweep.run.failure import kept_error, record_so_far, write_error
from ampsweep.run.launched_ranks import RankExit, run_ranks
from ampsweep.run.lifecycle import Send
from ampsweep.run.messages import Say
from ampsweep.run.rank import num_processes
from ampsweep.run.request import RunRequest, now
from ampsweep.training.build.device import run_devices, taken_devices

_RANK: Final = NamedFunction[Status]("ampsweep.run.rank:run_rank")


def run_on_ranks(request: RunRequest, *, send: Send, stop: StopRequest) -> Status:
    """Train on several ranks; the record holds the outcome, whatever it is.

    Raises:
        RuntimeError: the run failed, after it was recorded.
    """
    config = request.config
    first = run_devices(config.device)[0]
    unsupported = unsupported_reason(config.precision, first.device)
    if unsupported is not None:
        return end_untrained(request, first, Untrained("unsupported", unsupported), send)
    number = num_processes(config.parallel, config.device)
    if first.device.type == "cpu":  # else torch's profiler tells of each block that the ranks' other threads have made
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    faults: list[RankFault] = []

    def on_message(message: object) -> None:
        faults.append(message) if isinstance(message, RankFault) else send(message)

    with taken_devices(config.device, number, lambda text: send(Say(text)), stop) as taken:
        if (status := request.trained_meanwhile()) is not None:
            return status
        kills = num_oom_kills()
        order = (request, taken)
        ranks = run_ranks(_RANK, order, number, on_message=on_message, stop=stop, watch=lambda: bool(faults))
    is_oom_kill = kills is not None and (num_oom_kills() or 0) > kills
    fault = faults[0] if faults else None
    if fault is None or fault.is_guess:
        fault = _sudden_end(ranks, "interrupted" if stop.requested else "failed", is_oom_kill=is_oom_kill) or fault
    return _finished(request, fault, ranks).status


def _sudden_end(ranks: Sequence[RankExit[Status]], status: Status, *, is_oom_kill: bool) -> RankFault | None:
    """The fault of a rank that could not tell its own; a process that is gone gives the run this status."""
    for one in ranks:
        if one.signal is not None and one.result is None:
            name = signal.Signals(one.signal).name
            oom = OOM_KILLED if is_oom_kill and name == "SIGKILL" else None
            error = f"it was killed by {name}" if oom is None else oom.sentence
            return RankFault(rank=one.rank, status=status if oom is None else "oom", error=error, oom=oom)
    for one in ranks:
        if one.result is None and one.fault is None:
            code = "" if one.exit_code is None else f" with exit code {one.exit_code}"
            return RankFault(rank=one.rank, status=status, error=f"its process ended{code} without a result")
    for one in ranks:
        if one.fault is not None:
            return RankFault(rank=one.rank, status="failed", error=one.fault.sentence, traceback=one.fault.traceback)
    return None


def _finished(request: RunRequest, fault: RankFault | None, ranks: Sequence[RankExit[Status]]) -> RunRecord:
    """Read the run's record, and complete it where the first rank could not."""
    record = record_so_far(request, world_size=len(ranks))
    if fault is None:
        return record
    # Lost only after the training had ended, while it was sent, or predicted: what it came to stands.
    if record.status not in OUTCOMES and not (fault.status == "interrupted" and record.ended_at):
        record.status, record.error, record.oom = fault.status, fault.sentence, fault.oom
        record.ended_at = record.ended_at or now()
        record.write(request.directory)
    if record.status == "failed":
        if not kept_error(request.directory):
            write_error(request.directory, fault.traceback or fault.sentence, request.config)
        raise RuntimeError(fault.sentence)
    return record
