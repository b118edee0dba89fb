"""Whether a batch trains: a few real steps and an evaluation, in a process of their own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.data.base import Data
from ampsweep.launch.device_lock import device_lock
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.environment import device_name
from ampsweep.precision.precision import unsupported_reason
from ampsweep.record.batch_search import Probe
from ampsweep.run.messages import Probed, Say
from ampsweep.tracing.memory_limit import MemoryLimit
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.build.built import build, build_data
from ampsweep.training.build.device import resolve_device
from ampsweep.training.out_of_memory import out_of_memory
from ampsweep.training.trainer import Trainer

_STEPS: Final = 3
_APPLIED_STEPS: Final = 2
"""The first makes the optimizer's state, the second trains beside it: from then on steps need no more."""
_MAX_STEPS: Final = 50
"""A scale that backs off this often is no matter of memory: what becomes of it the training will tell."""
_VAL_BATCHES: Final = 2
"""Of one, nothing is left alive while the next is made."""


def probe_batch(config: Config, *, send: Callable[[object], None], stop: StopRequest) -> Probed:
    """Try to train with `config`, under its memory limit; nothing is logged or written.

    Raises:
        KeyboardInterrupt: it was asked to stop.
        Exception: what makes such a training fail, other than memory and a batch that a part refuses.
    """
    device = resolve_device(config.device)
    probe = None
    if unsupported_reason(config.precision, device) is None:
        with device_lock(str(device), on_wait=lambda text: send(Say(text)), stop=stop):
            probe = _probe(config, device, stop)
    return Probed(str(device), device_name(device), probe)


def _probe(config: Config, device: torch.device, stop: StopRequest) -> Probe:
    size = config.data["batch_size"]
    limit = MemoryLimit(device, config.trainer.memory_limit_gib)
    trainer: Trainer | None = None
    try:
        with limit:
            trainer = _assembled(config, device)
            _train(trainer, stop)
    except UserError as error:
        return Probe(batch_size=size, outcome="refused", error=str(error))
    except (RuntimeError, MemoryError, OSError) as error:
        oom = out_of_memory(error, device, limit, trainer)
        if oom is None:
            raise
        return Probe(batch_size=size, outcome="oom", oom=oom, error=oom.sentence)
    return Probe(batch_size=size, outcome="trains", peak_bytes=_peak_bytes(limit, trainer))


def _assembled(config: Config, device: torch.device) -> Trainer:
    config = replace(config, trainer=replace(config.trainer, log_every=1))  # a row takes memory too: a norm
    built = build(config, device, build_data(config, device))
    built = replace(built, data=_FewValBatches(built.data))
    return assemble_trainer(config, built, device, log=_ignore, progress=_ignore, save=_ignore)


def _train(trainer: Trainer, stop: StopRequest) -> None:
    """Train as a run does, traced step, rows and evaluation included."""
    with trainer.instruments:
        while int(trainer.instruments.applied_steps()) < _APPLIED_STEPS and trainer.step < _MAX_STEPS:
            trainer.num_steps = trainer.step + _STEPS
            trainer.train(stop)
            if stop.requested:
                raise KeyboardInterrupt


def _peak_bytes(limit: MemoryLimit, trainer: Trainer) -> int | None:
    if limit.peak_bytes is not None:
        return limit.peak_bytes
    peak_gib = trainer.instruments.summary().get("memory/peak_allocated_run_gib")
    return None if peak_gib is None else round(peak_gib * 2**30)


class _FewValBatches:
    """Data whose validation is short."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    def train_batch(self, index: int) -> Any:
        return self._data.train_batch(index)

    def val_batches(self) -> Iterator[Any]:
        yield from islice(self._data.val_batches(), _VAL_BATCHES)


def _ignore(*_: object) -> None:
    """Nothing of a probe is kept."""
