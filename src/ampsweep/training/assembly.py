"""Assembly of a trainer from the built parts of a training."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import torch

from ampsweep.config.schema import Config
from ampsweep.data.base import Data, stop_workers
from ampsweep.launch.watchdog import UNWATCHED, Watchdog
from ampsweep.monitors.memory import MemorySnapshot
from ampsweep.training.build.built import Built
from ampsweep.training.build.learning_rates import Schedule
from ampsweep.training.build.optimizer import is_fused
from ampsweep.training.instruments import Instruments
from ampsweep.training.trainer import Trainer

WARMUP_SECONDS: Final = 2.0
"""Time of warm-up on an accelerator: its clocks rise from idle in up to a second of work, and then its temperature."""

_VAL_BATCHES: Final = 2
"""Enough for the memory peak: with one, no batch is alive while the next is made; more than two add nothing."""


def keep_nothing(*_: object) -> None:
    """Do nothing, in place of a log, a progress display or a checkpoint."""


def assemble_trainer(
    config: Config,
    built: Built,
    device: torch.device,
    *,
    log: Callable[[Mapping[str, float], int], None] = keep_nothing,
    progress: Callable[[Trainer], None] = keep_nothing,
    save: Callable[[Trainer], None] = keep_nothing,
    snapshot: MemorySnapshot | None = None,
    watchdog: Watchdog = UNWATCHED,
    may_watch: bool = False,
) -> Trainer:
    """Assemble the trainer of a run; see `Trainer` for its callables, and `Instruments` for `snapshot`.

    Args:
        may_watch: `numerics.watch` counts; a training that only measures something else does without.
    """
    num_batches = config.trainer.grad_accum_steps * len(built.turns) * built.parallel.world_size
    tokens = built.data.tokens_per_batch
    make_instruments: Callable[..., Instruments] = Instruments
    make_trainer: Callable[..., Trainer] = Trainer
    if may_watch and config.numerics.watch:  # any other training does without these imports
        from ampsweep.monitors.looks import Looks
        from ampsweep.monitors.numerics import NumericsWatch
        from ampsweep.training.watched import WatchedInstruments, WatchedTrainer

        looks = Looks(config.numerics.every, built.num_steps)
        watch = NumericsWatch(built.model, built.precision, looks, is_compiled=config.trainer.compile)
        make_instruments, make_trainer = partial(WatchedInstruments, watch=watch), WatchedTrainer
    instruments = make_instruments(
        built.model,
        [*built.optimizers.values()],
        built.precision,
        built.data,
        warmup_steps=min(config.trainer.warmup_steps, built.num_steps // 2),
        warmup_seconds=warmup_seconds(config, device),
        samples_per_step=built.data.batch_size * num_batches,
        tokens_per_step=None if tokens is None else tokens * num_batches,
        is_fused=any(map(is_fused, built.optimizers.values())),
        is_compiled=config.trainer.compile,
        num_optimizer_steps=sum(len(turn.optimizers) for turn in built.turns),
        snapshot=snapshot,
        waits=built.parallel.waits,
    )
    optimizers, on_device = [*built.optimizers.values()], instruments.counts_on_device
    return make_trainer(
        built,
        schedule=Schedule(config.scheduler, optimizers, built.num_steps, on_device=on_device),
        instruments=instruments,
        config=config.trainer,
        log=log,
        progress=progress,
        save=save,
        watchdog=watchdog,
    )


def warmup_seconds(config: Config, device: torch.device) -> float:
    """The time that warm-up lasts at least."""
    if config.trainer.warmup_seconds is not None:
        return config.trainer.warmup_seconds
    return 0.0 if device.type == "cpu" else WARMUP_SECONDS


class ShortValidation:
    """The data of a training that only measures memory: two validation batches stand for all."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    def train_batch(self, index: int) -> Any:
        return self._data.train_batch(index)

    def val_batches(self) -> Iterator[Any]:
        yield from islice(self._data.val_batches(), _VAL_BATCHES)

    def stop_workers(self) -> None:
        stop_workers(self._data)
