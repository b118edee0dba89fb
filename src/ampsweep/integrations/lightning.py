"""One line for Lightning: `Trainer(..., callbacks=[AmpsweepCallback(arm="bf16")])`, of either package name."""

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ampsweep.integrations.watched_run import INSTALL, RecordingCallback, WatchedRun

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    # Both packages may be installed, each with classes of its own: the callback is one of both.
    bases = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            bases.append(importlib.import_module(package).Callback)
    if not bases:
        raise ImportError(INSTALL.format("AmpsweepCallback", "lightning", "lightning"))
    Callback = type("Callback", tuple(bases), {})


class AmpsweepCallback(RecordingCallback, Callback):
    """Records each `fit` of a `Trainer` as `ampsweep.record` does; what is logged with `self.log` keeps its name.

    The arm defaults to the mode that a traced step proves, the seed to that of `seed_everything`, and the
    precision claimed to `Trainer(precision=...)`. Other options are those of `ampsweep.record`.
    """

    source = "lightning"
    run: WatchedRun

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        names = ("accumulate_grad_batches", "gradient_clip_val", "max_epochs", "max_steps")
        facts = {f"trainer.{name}": getattr(trainer, name) for name in names}
        self._optimizers, self._seen = [*trainer.optimizers], dict[str, Any]()
        self.begin(
            claimed=trainer.precision,
            config={**pl_module.hparams, **facts, "trainer.strategy": type(trainer.strategy).__name__},
            samples_per_step=_samples_per_step(trainer),
        )

    def own_optimizers(self) -> Callable[[Optimizer], bool]:
        return lambda optimizer: any(optimizer is own for own in self._optimizers)

    def on_train_batch_end(self, trainer: "Trainer", *_: Any) -> None:
        if self.run.is_due:
            self.run.log(self._new_metrics(trainer))

    def on_validation_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if not trainer.sanity_checking:
            self._new_metrics(trainer)
            self.run.evaluation_begins(pl_module)
            self.run.note_evaluation(pl_module)

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if not trainer.sanity_checking:
            self.run.log(self._new_metrics(trainer))

    on_test_start, on_test_end, on_train_epoch_end = on_validation_start, on_validation_end, on_validation_end

    def on_save_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule", checkpoint: Any) -> None:
        self.run.evaluation_begins(pl_module)

    def on_train_end(self, *_: Any) -> None:
        self.run.finish()

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        self.run.finish(exception)

    def _new_metrics(self, trainer: "Trainer") -> dict[str, Any]:
        """What has been logged since the last call; other metrics of the trainer are in the same storage as then."""
        seen, self._seen = self._seen, {**trainer.callback_metrics}
        return {
            name: value
            for name, value in self._seen.items()
            if name not in seen or value.data_ptr() != seen[name].data_ptr()
        }


def _samples_per_step(trainer: "Trainer") -> int | None:
    batch_size = getattr(trainer.train_dataloader, "batch_size", None)
    per_batch = trainer.accumulate_grad_batches * trainer.world_size
    return batch_size * per_batch if isinstance(batch_size, int) else None
