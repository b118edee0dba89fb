"""What the callbacks of all frameworks share: a recording whose steps torch's hooks tell, as those of a script."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ampsweep.config.claims import claimed_precision
from ampsweep.integrations.own_training import OwnTraining, check_options
from ampsweep.integrations.script.found_training import FoundTraining, find_training
from ampsweep.integrations.script.session import stand_aside
from ampsweep.integrations.script.watcher import Watcher
from ampsweep.records.run_record import Source
from ampsweep.text import one_line

INSTALL: Final = "{} needs {}: pip install -e '.[{}]'"
"""The error if a framework is not installed."""
_LOGGED: Final = {"loss": "train/logged_loss", "learning_rate": "lr"}
"""Names of trainers that mean something else here: a logged `loss` is often a mean over steps."""


class RecordingCallback:
    """Base of the callbacks, whose options are those of `OwnTraining`; `known` are those that the framework tells.

    Hooks (`on_*`) that fail end the recording, not the training; but for those in which a training begins, they are
    called while there is a run. Raises ValueError: an option is impossible; TypeError: there is none of the name.
    """

    source: Source
    run: "WatchedRun | None" = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, hook in list(vars(cls).items()):
            if name.startswith("on_"):
                setattr(cls, name, _quietly(hook, begins=name in ("on_train_begin", "on_train_start")))

    def __init__(self, **options: Any) -> None:
        check_options(**options)
        inspect.signature(OwnTraining).bind(None, None, **options)
        self.options, self.known = options, dict[str, Any]()

    def begin(self, **known: Any) -> None:
        """Watch for the next training; a trainer that begins anew has not ended its last one, after an error."""
        if self.run is not None:
            self.run.finish(RuntimeError("the trainer began again"))
        self.known, self.run = known, WatchedRun(self)

    def tell(self) -> None:
        """Add to `known` what can be told at the first optimizer step only."""

    def own_optimizers(self) -> Callable[[Optimizer], bool]:
        """A function that tells the training's optimizers from others in the process."""
        raise NotImplementedError


class WatchedRun(Watcher):
    """Watches this process for its next training, whose record begins with the first optimizer step."""

    def __init__(self, callback: RecordingCallback) -> None:
        self._callback = callback
        stand_aside(callback.source)
        super().__init__()

    @property
    def is_due(self) -> bool:
        """True after a step that becomes a row of the history."""
        return self._run is not None and self._run.num_steps % self._callback.options.get("log_every", 10) == 0

    @property
    def directory(self) -> Path | None:
        """Where the record is; None before the first step."""
        return None if self._run is None else self._run.directory

    def log(self, values: Mapping[str, Any]) -> None:
        """Log the numbers among the values, with the latest step; after the end they are added to the record."""
        self.logged(None, {_LOGGED.get(name, name): value for name, value in values.items()})

    def note_evaluation(self, model: nn.Module) -> None:
        if self._run is not None:
            self._run.note_evaluation(model)

    def finish(self, error: BaseException | None = None) -> None:
        if self.hooks.is_open:
            self.end(error)

    def failed(self, reason: str) -> None:
        if self._run is None:
            print(f"ampsweep records nothing: {reason}", file=sys.stderr)
        self.hooks.close()
        super().failed(reason)

    def _find(self, first: Optimizer) -> FoundTraining:
        return find_training(first, self._callback.own_optimizers())

    def _new_run(self, training: FoundTraining, scaler: GradScaler | None) -> OwnTraining:
        self._callback.tell()
        known = self._callback.known
        options = {name: value for name, value in self._callback.options.items() if value is not None}
        words = options.get("claimed") or known.get("claimed")
        if words is not None and claimed_precision(words) is None:
            known["arm"] = words  # no mode of the table, which a traced step could prove
        settings = {"scaler": scaler, "source": self._callback.source, **known, **options}
        return OwnTraining(training.model, training.optimizers, **settings)


def _quietly(hook: Callable[..., None], *, begins: bool) -> Callable[..., None]:
    @functools.wraps(hook)
    def guarded(self: RecordingCallback, *args: Any, **kwargs: Any) -> None:
        try:
            if begins or self.run is not None:
                hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the training is worth more than its record
            reason = f"{hook.__name__}: {one_line(error)}"
            if self.run is None:
                print(f"ampsweep records nothing: {reason}", file=sys.stderr)
            else:
                self.run.failed(reason)

    return guarded
