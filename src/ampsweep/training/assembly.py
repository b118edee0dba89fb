"""A trainer from what was built."""

from collections.abc import Callable, Mapping

import torch

from ampsweep.config.schema import Config
from ampsweep.monitors.snapshot import MemorySnapshot
from ampsweep.training.build.built import Built
from ampsweep.training.build.optimizer import is_fused
from ampsweep.training.instruments import Instruments
from ampsweep.training.schedule import Schedule
from ampsweep.training.trainer import Trainer


def assemble_trainer(
    config: Config,
    built: Built,
    device: torch.device,
    *,
    log: Callable[[Mapping[str, float], int], None],
    progress: Callable[[Trainer], None],
    save: Callable[[Trainer], None],
    snapshot: MemorySnapshot | None = None,
) -> Trainer:
    """The trainer of a run; `log`, `progress` and `save` are described there, `snapshot` at its instruments."""
    accumulate = config.trainer.grad_accum_steps
    tokens = built.data.tokens_per_batch
    instruments = Instruments(
        built.model,
        built.optimizer,
        built.precision,
        warmup_steps=min(config.trainer.warmup_steps, built.num_steps // 2),
        samples_per_step=built.data.batch_size * accumulate,
        tokens_per_step=None if tokens is None else tokens * accumulate,
        is_fused=is_fused(built.optimizer),
        snapshot=snapshot,
    )
    return Trainer(
        model=built.model,
        data=built.data,
        task=built.task,
        precision=built.precision,
        optimizer=built.optimizer,
        schedule=Schedule(config.scheduler, built.optimizer, built.num_steps, on_device=instruments.counts_on_device),
        instruments=instruments,
        config=config.trainer,
        num_steps=built.num_steps,
        log=log,
        progress=progress,
        save=save,
    )
