"""The end of a run that never came to be built."""

from collections.abc import Callable

import torch

from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.environment import device_name
from ampsweep.record import RunRecord
from ampsweep.record.outcome import OutOfMemory, Status
from ampsweep.run.messages import Say
from ampsweep.run.prediction import add_prediction
from ampsweep.run.request import RunRequest, new_record, now
from ampsweep.tracking.tracker import Tracker, make_tracker


def end_unsupported(request: RunRequest, device: torch.device, reason: str, send: Callable[[object], None]) -> Status:
    """Write the record of a run whose device cannot do its precision mode, and track it as one that is finished."""
    return _track(_ended(request, device, "unsupported", reason), request, send)


def end_without_memory(
    request: RunRequest, device: torch.device, oom: OutOfMemory, send: Callable[[object], None]
) -> Status:
    """Write the record of a run that there was no memory to build, and track it as one that is finished."""
    record = _ended(request, device, "oom", oom.sentence)
    record.oom = oom
    add_prediction(record, request, device)
    return _track(record, request, send)


def trackers_of(request: RunRequest, send: Callable[[object], None], stop: StopRequest | None = None) -> Tracker:
    """The trackers of a run, whose lines for the user are sent, and who may ask it to stop."""
    return make_tracker(
        request.config.tracking,
        group=request.group,
        say=lambda text: send(Say(text)),
        wandb=request.wandb,
        on_stop=lambda reason: None if stop is None else stop.request(reason),
    )


def _ended(request: RunRequest, device: torch.device, status: Status, error: str) -> RunRecord:
    name = device_name(device)
    record = new_record(request.config, device=str(device), device_name=name, batch_search=request.batch_search)
    record.status, record.error, record.ended_at = status, error, now()
    return record


def _track(record: RunRecord, request: RunRequest, send: Callable[[object], None]) -> Status:
    record.write(request.directory)
    trackers = trackers_of(request, send)
    try:
        trackers.start(record, request.directory, resume_after=None)
    finally:
        trackers.finish(record)
        record.write(request.directory)
    return record.status
