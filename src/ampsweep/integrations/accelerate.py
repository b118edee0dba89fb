"""One line for Accelerate: `Accelerator(..., log_with=[AmpsweepTracker(arm="bf16")])`."""

import gc
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ampsweep.integrations.watched_run import INSTALL, RecordingCallback, WatchedRun

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.state import AcceleratorState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError(INSTALL.format("AmpsweepTracker", "accelerate", "accelerate")) from error


class AmpsweepTracker(RecordingCallback, GeneralTracker):  # type: ignore[misc]  # accelerate has no types
    """Records the training of an `Accelerator` as `ampsweep.record` does, with what `accelerator.log` is given.

    It begins with the first optimizer step, with or without `init_trackers`, whose config it keeps, and ends with
    `end_training` or the process. The precision claimed defaults to `mixed_precision` of the `Accelerator` or of
    `accelerate launch`; other options are those of `ampsweep.record`.
    """

    name = "ampsweep"
    source = "accelerate"
    requires_logging_directory = False
    main_process_only = False  # each rank has figures of its own
    run: WatchedRun

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._before = {id(wrapper) for wrapper in _prepared()}
        self.begin(config={})
        GeneralTracker.__init__(self)

    @property
    def tracker(self) -> WatchedRun:
        return self.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.known["config"] |= values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.run.log(values)

    def finish(self) -> None:
        self.run.finish()

    def tell(self) -> None:
        self.known["claimed"] = AcceleratorState().mixed_precision

    def own_optimizers(self) -> Callable[[Optimizer], bool]:
        own = {id(wrapper.optimizer) for wrapper in _prepared() if id(wrapper) not in self._before}
        return lambda optimizer: id(optimizer) in own


def _prepared() -> list[AcceleratedOptimizer]:
    """The optimizers that an `Accelerator` has prepared, which has no public list of them."""
    return [found for found in gc.get_objects() if type(found) is AcceleratedOptimizer]
