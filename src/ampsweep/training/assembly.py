"""Assembly of a trainer from the built parts of a training."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampsweep.config.schema import Config
from ampsweep.data.base import Data, stop_workers
from ampsweep.launch.watchdog import UNWATCHED, Watchdog
from ampsweep.recorder.instruments import Instruments
from ampsweep.recorder.recorder import Recorder, do_nothing
from ampsweep.records import RunRecord
from ampsweep.training.components.built import Built
from ampsweep.training.components.learning_rates import Schedule
from ampsweep.training.components.optimizer import is_fused
from ampsweep.training.trainer import Trainer
from ampsweep.training.validation_watch import ValidationWatch

if TYPE_CHECKING:
    from ampsweep.tracking.tracker import Tracker


def assemble_trainer(
    config: Config,
    built: Built,
    device: torch.device,
    *,
    record: RunRecord | None = None,
    tracker: "Tracker | None" = None,
    directory: Path | None = None,
    on_rows: Callable[[Trainer], None] = do_nothing,
    save: Callable[[Trainer], None] = do_nothing,
    keep_best: Callable[[Trainer], None] = do_nothing,
    watchdog: Watchdog = UNWATCHED,
    may_watch: bool = False,
) -> Trainer:
    """Assemble the trainer of a run; trainings that only measure something ignore `numerics.watch` (`may_watch`)."""
    num_batches = config.trainer.grad_accum_steps * len(built.turns) * built.parallel.world_size
    tokens, names = built.data.tokens_per_batch, {turn.name for turn in built.turns}
    watch, observers = None, []
    if may_watch and config.numerics.watch:  # lazy imports: other trainings do not need them
        from ampsweep.monitors.numerics import NumericsWatch
        from ampsweep.monitors.observation_schedule import ObservationSchedule
        from ampsweep.training.update_observers import WatchedUpdates

        schedule = ObservationSchedule(config.numerics.every, built.num_steps)
        watch = NumericsWatch(built.model, built.precision, schedule, is_compiled=config.trainer.compile)
        observers = [WatchedUpdates(watch, built.precision)]
    optimizers = [*built.optimizers.values()]
    instruments = Instruments(
        built.model,
        optimizers,
        built.precision,
        built.data,
        warmup_steps=min(config.trainer.warmup_steps, built.num_steps // 2),
        warmup_seconds=warmup_seconds(config, device),
        samples_per_step=built.data.batch_size * num_batches,
        tokens_per_step=None if tokens is None else tokens * num_batches,
        is_fused=any(map(is_fused, optimizers)),
        is_compiled=config.trainer.compile,
        num_optimizer_steps=sum(len(turn.optimizers) for turn in built.turns),
        waits=built.parallel.waits,
        watch=watch,
    )
    recorder = Recorder(
        instruments,
        built.precision,
        parallel=built.parallel,
        num_losses=len(names) if len(names) > 1 else 0,
        record=record,
        tracker=tracker,
        directory=directory,
        on_rows=lambda: on_rows(trainer),
    )
    trainer = Trainer(
        built,
        schedule=Schedule(config.scheduler, optimizers, built.num_steps, on_device=instruments.counts_on_device),
        recorder=recorder,
        config=config.trainer,
        validation=ValidationWatch(config, optimizers),
        save=save,
        keep_best=keep_best,
        watchdog=watchdog,
        observers=observers,
    )
    return trainer


def warmup_seconds(config: Config, device: torch.device) -> float:
    """Return the minimum duration of warm-up."""
    if config.trainer.warmup_seconds is not None:
        return config.trainer.warmup_seconds
    return 0.0 if device.type == "cpu" else 2.0  # in up to a second its clocks rise from idle, and then its temperature


class ShortValidation:
    """Data limited to two validation batches, for a training that only measures memory."""

    is_partial = True  # without metrics over whole sets, and of the first of several sets only

    def __init__(self, data: Data) -> None:
        self._data = data
        self.batch_size, self.num_train_batches = data.batch_size, data.num_train_batches
        self.tokens_per_batch, self.fingerprint = data.tokens_per_batch, data.fingerprint

    def train_batch(self, index: int) -> Any:
        return self._data.train_batch(index)

    def val_batches(self) -> Iterator[Any]:
        # Enough for the memory peak, at which one batch is alive while the next is made.
        yield from islice(self._data.val_batches(), 2)

    def stop_workers(self) -> None:
        stop_workers(self._data)
