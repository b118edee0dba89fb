"""One run from config to record: build, train, record."""

import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ampsweep.build.built import Built, build, build_data
from ampsweep.build.device import resolve_device
from ampsweep.build.optimizer import is_fused
from ampsweep.config.identity import code_version
from ampsweep.config.resolved import component_name
from ampsweep.entries.assembly import assemble_trainer
from ampsweep.entries.messages import Progress, Say
from ampsweep.entries.request import RunRequest, new_record, now
from ampsweep.launch.device_lock import device_lock
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.environment import device_name, environment
from ampsweep.precision.support import unsupported_reason
from ampsweep.record import FILE_NAME, RunRecord, Status
from ampsweep.tracking.base import Trackers
from ampsweep.tracking.factory import make_trackers
from ampsweep.training.checkpoint import load_checkpoint
from ampsweep.training.resume import resume, take_checkpoint
from ampsweep.training.trainer import Trainer


def run_once(request: RunRequest, *, send: Callable[[object], None], stop: StopRequest) -> Status:
    """Train in this process; everything about the run ends up in its record and history.

    Raises:
        Exception: what made the run fail, after it was recorded.
    """
    config = request.config
    device = resolve_device(config.device)
    reason = unsupported_reason(config.precision, device)
    if reason is not None:
        record = new_record(config, device=str(device), device_name=device_name(device))
        record.status, record.error, record.ended_at = "unsupported", reason, now()
        record.write(request.directory)
        return record.status
    with device_lock(str(device), on_wait=lambda text: send(Say(text)), stop=stop):
        built = build(config, device, build_data(config, device))
        return train_built(request, built, device, send=send, stop=stop)


def train_built(
    request: RunRequest, built: Built, device: torch.device, *, send: Callable[[object], None], stop: StopRequest
) -> Status:
    """Train what is built; see `run_once`."""
    config = request.config
    record = _start_record(request, built, device)
    trackers = make_trackers(config.tracking, group=request.group, say=lambda text: send(Say(text)))
    try:
        with _Session(request, built, device, record, trackers, send) as session:
            ending = session.trainer.train(stop)
            record.status, record.error, record.cut_short = ending.status, ending.error, ending.cut_short
    except Exception as error:
        record.status = "oom" if _is_out_of_memory(error) else "failed"
        record.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:1000]
        if record.status == "failed":
            raise
    finally:
        record.ended_at = now()
        record.write(request.directory)
        trackers.finish(record)
        record.write(request.directory)
    return record.status


class _Session:
    """The trainer of a run with what surrounds it; on leaving, what was measured goes into the record."""

    def __init__(
        self,
        request: RunRequest,
        built: Built,
        device: torch.device,
        record: RunRecord,
        trackers: Trackers,
        send: Callable[[object], None],
    ) -> None:
        self._request, self._record, self._trackers = request, record, trackers

        def save(trainer: Trainer) -> None:
            name = component_name(request.config.model)
            take_checkpoint(trainer, request.directory, record.config_hash, name, record.arm)

        self.trainer = assemble_trainer(
            request.config,
            built,
            device,
            log=trackers.log,
            progress=lambda step, loss: send(Progress(step, built.num_steps, loss)),
            save=save,
        )
        self._notes = [] if request.checkpoint is None else resume(self.trainer, load_checkpoint(request.checkpoint))
        for note in self._notes:
            send(Say(note))

    def __enter__(self) -> "_Session":
        self._record.attempts.append(_attempt(self.trainer.step, self._request.checkpoint, self._notes))
        self._record.write(self._request.directory)
        continues = self._request.checkpoint is not None
        self._trackers.start(
            self._record, self._request.directory, resume_after=self.trainer.step if continues else None
        )
        self._record.write(self._request.directory)
        self.trainer.instruments.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        instruments = self.trainer.instruments
        instruments.__exit__(kind, error, trace)
        finite = {key: value for key, value in self.trainer.values.items() if math.isfinite(value)}
        self._record.summary = finite | instruments.summary()
        self._record.memory = instruments.memory()
        self._record.proof |= instruments.proof()


def _start_record(request: RunRequest, built: Built, device: torch.device) -> RunRecord:
    record = new_record(
        request.config,
        device=str(device),
        device_name=device_name(device),
        data_fingerprint=built.data.fingerprint,
        steps=built.num_steps,
        model_size=sum(parameter.numel() for parameter in built.model.parameters()),
    )
    if (request.directory / FILE_NAME).exists() and request.checkpoint is not None:
        earlier = RunRecord.read(request.directory)
        record.run_id, record.started_at = earlier.run_id, earlier.started_at
        record.attempts, record.wandb = earlier.attempts, earlier.wandb
    with built.precision.flags():
        record.environment = {"code_version": code_version(), **environment(device)}
    record.proof["optimizer_fused"] = is_fused(built.optimizer)
    return record


def _attempt(from_step: int, checkpoint: Path | None, notes: list[str]) -> dict[str, Any]:
    attempt: dict[str, Any] = {
        "started_at": now(),
        "from_step": from_step,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    if checkpoint is not None:
        attempt["checkpoint"] = str(checkpoint)
        attempt["notes"] = notes
    return attempt


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU allocator has no exception type of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
