"""One line for Lightning Fabric: `Fabric(..., callbacks=[AmpsweepCallback(arm="bf16")])`."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ampsweep.integrations.script.found_training import trained_by
from ampsweep.integrations.watched_run import RecordingCallback, WatchedRun


class AmpsweepCallback(RecordingCallback):
    """Records the training of a `Fabric` as `ampsweep.record` does, with what `fabric.log` is given.

    It begins with the first optimizer step after `fabric.setup` and ends with `fabric.call("on_train_end")` or the
    process. The precision claimed defaults to `Fabric(precision=...)`; other options are those of `ampsweep.record`.
    """

    source = "fabric"

    run: WatchedRun

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._parameters = set[int]()  # of all modules that were set up, by identity
        self.begin()

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        self.known["claimed"] = getattr(fabric.strategy.precision, "precision", None)
        self._parameters |= {id(parameter) for parameter in module.parameters()}
        if self not in fabric.loggers:
            fabric.loggers.append(self)  # `fabric.log` tells nothing to callbacks

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.run.finish()

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """What `fabric.log` asks of a logger."""
        self.run.log(metrics)

    def own_optimizers(self) -> Callable[[Optimizer], bool]:
        return lambda optimizer: not self._parameters.isdisjoint(trained_by(optimizer))
