"""A probe: a few real steps and an evaluation with a batch size, in a process of their own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.data.base import stop_workers
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.records.batch_search import Probe
from ampsweep.run.ending import why_unsupported
from ampsweep.run.messages import Say
from ampsweep.search.largest_batch import Probed
from ampsweep.text import GIB
from ampsweep.training.assembly import ShortValidation, assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.components.device import taken_device
from ampsweep.training.trainer import Trainer

_STEPS: Final = 3
_APPLIED_STEPS: Final = 2  # the first creates the optimizer's state, the second has it; later ones need no more memory
_MAX_STEPS: Final = 50  # a scale that backs off this often is not a matter of memory


def probe_batch(config: Config, *, send: Callable[[object], None], stop: StopRequest) -> Probed:
    """Try to train with `config`, under its memory limit; nothing is logged or written. It raises KeyboardInterrupt,
    and the training's error unless memory is exhausted or a part refuses the batch."""
    with taken_device(config.device, lambda text: send(Say(text)), stop) as taken:
        is_supported = why_unsupported(config.precision, taken.device, searches_batch=True) is None
        return Probed(str(taken), taken.name, _probe(config, taken.device, stop) if is_supported else None)


def _probe(config: Config, device: torch.device, stop: StopRequest) -> Probe:
    size = config.data["batch_size"]
    limit = MemoryLimit(device, config.trainer.memory_limit_gib)
    trainer: Trainer | None = None
    try:
        with limit:
            logged = replace(config, trainer=replace(config.trainer, log_every=1))  # a row takes memory, too: a norm
            built = build(logged, device, build_data(logged, device))
            trainer = assemble_trainer(logged, replace(built, data=ShortValidation(built.data)), device)
            _train(trainer, stop)
    except UserError as error:
        return Probe(batch_size=size, outcome="refused", error=str(error))
    except (RuntimeError, MemoryError, OSError) as error:
        reached = () if trainer is None else (trainer.recorder.phase, trainer.step)
        oom = out_of_memory(error, device, limit, *reached)
        if oom is None:
            raise
        return Probe(batch_size=size, outcome="oom", oom=oom, error=oom.sentence)
    finally:
        if trainer is not None:
            stop_workers(trainer.data)
    peak_bytes = limit.peak_bytes
    peak_gib = trainer.instruments.summary().get("memory/peak_allocated_run_gib")
    if peak_bytes is None and peak_gib is not None:
        peak_bytes = round(peak_gib * GIB)
    return Probe(batch_size=size, outcome="trains", peak_bytes=peak_bytes)


def _train(trainer: Trainer, stop: StopRequest) -> None:
    """Train as a run does, including the traced step, rows and an evaluation."""
    with trainer.instruments:
        while int(trainer.instruments.applied_steps()) < _APPLIED_STEPS and trainer.step < _MAX_STEPS:
            trainer.num_steps = trainer.step + _STEPS
            trainer.train(stop)
            if stop.requested:
                raise KeyboardInterrupt
