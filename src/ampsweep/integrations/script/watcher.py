"""Watches a process of a recorded command for a training, and records it, by torch's hooks alone."""

import atexit
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ampsweep.integrations.script.found_training import FoundTraining, find_training, trained_by
from ampsweep.integrations.script.hooks import Hooks, is_plain, scalar_of
from ampsweep.integrations.script.session import Session, error_of_process, watching

if TYPE_CHECKING:
    from ampsweep.integrations.own_training import OwnTraining
    from ampsweep.observe.operators import TorchDispatchMode

_MAX_CALLS: Final = 64  # calls of optimizers after which one that has made none is no part of a step
_MAX_UNTIMED: Final = 3  # steps in a row after a call of `eval`, after which that is how the script trains
_OURS: Final = ("perf/", "memory/", "amp/", "device/", "numerics/", "instrumentation/")
_watcher: "ScriptWatcher | None" = None


def imported(name: str) -> None:
    """Watch this process, which has just imported torch, until its end; with wandb, copy what is logged there."""
    global _watcher
    if name == "torch" and (session := Session.of_this_process()) is not None:
        session.tell()
        asked = session.examination
        _watcher = ScriptWatcher(session) if asked is None else pkgutil.resolve_name(asked.watcher)(session)
        watching.extend([_watcher.end] if asked is None else [])
    to_wandb = getattr(sys.modules.get("wandb"), "Run", None)
    if to_wandb is not None and _watcher is not None and _watcher.hooks.is_open:
        _watcher.hooks.wrap(to_wandb, "log", _watcher.logged)


class Watcher:
    """Finds the steps of a training in the calls that torch's hooks report, and drives its record.

    A step ends with the call of an optimizer or, with a scaler, with its update; with several optimizers, when each has
    been called. The record begins within the first step, once model and optimizers are known. A forked process, such as
    a worker of a data loader, is not watched.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._run: OwnTraining | None = None
        self._wholes: frozenset[int] = frozenset()
        self._trained: set[int] = set()  # parameters of the model, by identity
        self._optimizers: dict[int, Optimizer] = {}  # those that a step consists of, by identity
        self._called: set[int] = set()  # of these, in this step
        self._num_calls = 0
        self._inside: list[Optimizer] = []  # whose `step` runs now; a wrapper of an optimizer calls another within
        self._update_due = False  # by a scaler that has stepped
        self._scaled: tuple[ref[Tensor], float | Tensor] | None = None  # a scaled loss, and its value before
        self._sum: float | Tensor | None = None  # of the losses since the latest call of an optimizer
        self._losses: dict[int, float | Tensor] = {}  # of this step, by the optimizer that was called after them
        self._has_trained = False  # in this step backward has been called
        self._is_untimed, self._num_untimed = False, 0
        self._tracer: TorchDispatchMode | None = None  # of a step that is traced
        self.hooks = Hooks(self)
        own = ref(self)  # nothing is unregistered there
        os.register_at_fork(after_in_child=lambda: None if (watcher := own()) is None else watcher._forked())

    # --- what the hooks report

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if scaler.is_enabled() and type(scaler).update is GradScaler.update:
            self._update_due = True
            self._call(optimizer, scaler)

    def step_begins(self, optimizer: Optimizer) -> None:
        if optimizer in self._inside:  # its last call was ended by an error
            self._inside.clear()
        self._inside.append(optimizer)
        is_called = self._update_due and id(optimizer) in self._called  # by its scaler
        if len(self._inside) == 1 and not is_called:
            self._call(optimizer)

    def step_ended(self, optimizer: Optimizer) -> None:
        if self._inside[:1] == [optimizer]:
            self._inside.clear()
            if self._sum is not None:  # of a closure, which other micro-batches may have preceded
                before = self._losses.get(id(optimizer))
                self._losses[id(optimizer)], self._sum = self._sum if before is None else before + self._sum, None
            if self._run is not None and self._is_complete():
                self._end_step(self._run)

    def scaler_updated(self, scaler: GradScaler) -> None:
        if self._run is not None and self._update_due:
            self._update_due = False
            ends_step = self._is_complete()
            self._run.count_update(ends_step=ends_step)
            if ends_step:
                self._end_step(self._run, updates_scale=False)

    def loss_scaled(self, loss: object, scaled: object) -> None:
        if is_plain(loss) and loss.requires_grad and loss.numel() == 1 and scaled is not loss:
            assert isinstance(scaled, Tensor)
            self._scaled = ref(scaled), scalar_of(loss)

    def backward_begins(self, roots: object, gradients: object = None) -> None:
        if gradients is not None:  # within a backward pass, as of a checkpoint, or of no loss
            return
        if self._inside and self._sum is not None:
            return  # a closure's further evaluations are of the same step
        if not self._has_trained and self._run is not None:
            self._run.write_row()
        self._has_trained = True
        for root in (roots,) if isinstance(roots, Tensor) else roots if isinstance(roots, list | tuple) else ():
            if is_plain(root) and root.numel() == 1:
                scaled = self._scaled
                value = scaled[1] if scaled is not None and scaled[0]() is root else scalar_of(root)
                self._sum = value if self._sum is None else self._sum + value

    def evaluation_begins(self, model: nn.Module) -> None:
        """An evaluation after a step: the time until the end of the next one does not count."""
        if self._run is None or self._has_trained or self._is_untimed or id(model) not in self._wholes:
            return
        if self._num_untimed < _MAX_UNTIMED and self._can_leave():
            self._run.begin_step("untimed")
            self._is_untimed, self._tracer = True, None

    def logged(self, _: object, data: object, *__: object, **___: object) -> None:
        """Keep the numbers of a row that the script logs to W&B; figures of ours stay ours."""
        if self._run is not None and isinstance(data, Mapping):
            row = dict(_numbers(data))
            if kept := {key: row[key] for key in row if not key.startswith(_OURS) and key != "train/loss"}:
                self._run.log(kept)

    def failed(self, reason: str) -> None:
        if self._run is not None:
            self._run.give_up(reason)

    def _find(self, first: Optimizer) -> FoundTraining:
        return find_training(first)

    def _new_run(self, training: FoundTraining, scaler: GradScaler | None) -> "OwnTraining":
        raise NotImplementedError

    # --- steps

    def _call(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        """An optimizer is to update parameters, unless its scaler skips that."""
        if self._run is None:
            self._begin(optimizer, scaler)
        if threading.get_ident() != self._thread:
            raise RuntimeError("optimizer steps in several threads")
        if id(optimizer) not in self._optimizers:
            own = trained_by(optimizer)
            if self._trained.isdisjoint(own):  # another training
                return
            for key, other in list(self._optimizers.items()):  # a new one takes the place of one for the same model
                if not own.isdisjoint(trained_by(other)):
                    del self._optimizers[key]
            self._optimizers[id(optimizer)] = optimizer
        if self._sum is not None:
            self._losses[id(optimizer)], self._sum = self._sum, None
        self._called.add(id(optimizer))
        self._num_calls += 1
        if self._num_calls > _MAX_CALLS:
            self._optimizers = {key: other for key, other in self._optimizers.items() if key in self._called}

    def _is_complete(self) -> bool:
        return not self._update_due and bool(self._called) and self._called >= self._optimizers.keys()

    def _end_step(self, run: "OwnTraining", *, updates_scale: bool = True) -> None:
        """End a step, if possible, and begin the next at once: whatever a script does belongs to one."""
        if not self._can_leave():
            return
        if losses := self._losses:
            self._losses = {}
            run.sample_loss(reduce(add, losses.values()))
        run.end_step(updates_scale=updates_scale)
        if self._num_untimed < _MAX_UNTIMED:
            self._num_untimed = self._num_untimed + 1 if self._is_untimed else 0
        self._called.clear()
        self._num_calls, self._has_trained, self._is_untimed = 0, False, False
        self._begin_step(run)

    def _begin(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        training = self._find(optimizer)
        self._optimizers = {id(own): own for own in training.optimizers}
        self._trained = set().union(*map(trained_by, training.optimizers))
        self._wholes, self._thread = training.wholes, threading.get_ident()
        self._run = self._new_run(training, scaler)
        self._run.start()
        self._run.lacking["train/loss"] = "no backward pass began at a plain tensor with one element"
        self._begin_step(self._run)
        atexit.register(self.end)
        self.hooks.wrap(os, "_exit", lambda *_: self.end())

    def is_observed(self, run: "OwnTraining") -> bool:
        """Whether the step that is to begin is observed by others, so that its time does not count."""
        return False

    def _begin_step(self, run: "OwnTraining") -> None:
        self._tracer = None
        if self.is_observed(run):
            run.begin_step("untimed")
        elif run.is_traced:
            run.begin_step()
        elif _innermost_mode() is None:
            run.begin_step()
            self._tracer = _innermost_mode()
        else:  # a mode of the script's own, which may end before ours
            run.lacking["proof"] = "a dispatch mode of the script's own was active between steps: none could be traced"
            run.begin_step("timed")

    def _can_leave(self) -> bool:
        """Return False while a mode that the script has entered lies above that of a traced step."""
        return self._tracer is None or _innermost_mode() is self._tracer

    # --- the end

    def end(self, error: BaseException | None = None) -> None:
        """End the record, with the error that ended the training if any; by default the process's own."""
        atexit.unregister(self.end)
        self.hooks.close()
        if (run := self._run) is not None:
            run.record.config["own"] |= _wandb_config()
            run.finish(error or error_of_process())

    def _forked(self) -> None:
        """Forget the training in a forked process, such as a worker of a data loader."""
        self.hooks.close()
        if self._run is not None:
            self._run.is_recording = False
            if self._tracer is not None and self._can_leave():
                self._tracer.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class ScriptWatcher(Watcher):
    """Watches the process of a recorded command, and tells its launcher."""

    def __init__(self, session: Session) -> None:
        self._session, self._arguments = session, sys.argv[1:]
        super().__init__()

    def failed(self, reason: str) -> None:
        super().failed(reason)
        if self._run is None:
            self._session.tell(reason=reason)

    def _new_run(self, training: FoundTraining, scaler: GradScaler | None) -> "OwnTraining":
        from ampsweep.integrations.own_training import OwnTraining
        from ampsweep.integrations.script.command_line import settings_of

        config = settings_of(self._arguments) | _wandb_config()
        every = self._session.log_every
        return OwnTraining(
            training.model, training.optimizers, scaler=scaler, source="script", config=config, log_every=every
        )


def _innermost_mode() -> "TorchDispatchMode | None":
    from ampsweep.observe.operators import innermost_mode

    return innermost_mode()


def _wandb_config() -> dict[str, Any]:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return {}
    from ampsweep.integrations.own_record import as_settings

    return as_settings(dict(run.config))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | Tensor]]:
    """The numbers in a row for W&B, by the keys that W&B gives nested ones; tensors stay where they are."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) or (is_plain(value) and value.numel() == 1):
            yield f"{prefix}{key}", value
        elif not isinstance(value, Tensor) and getattr(value, "size", None) == 1:  # NumPy's
            yield from _numbers({key: value.item()}, prefix)
