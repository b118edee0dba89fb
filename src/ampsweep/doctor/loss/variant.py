"""A training with some of its settings changed: the doctor's trials, which start from the same state and batches."""

import glob
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.code_edits import CodeEdit, NotAppliedError
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import Replay, TakenSteps, taken_steps

_MOST_STEPS = 17  # steps in which a scaler goes down from torch's default scale to 1


@dataclass(frozen=True)
class Variant:
    kept: frozenset[str] = frozenset()  # names of modules that are kept in float32 under autocast
    edit: CodeEdit | None = None
    precision: PrecisionConfig | None = None  # None: that of the training
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # settings of the optimizer

    def replay(self, examined: ExaminedTraining) -> Replay:
        """The training with the change, except for the edit, which holds inside `edited`."""
        config = examined.config
        precision = self.precision or config.precision
        precision = replace(precision, fp32_modules=[*precision.fp32_modules, *map(glob.escape, sorted(self.kept))])
        changed = replace(config, precision=precision, optimizer={**config.optimizer, **self.optimizer})
        return Replay(changed, examined.device, examined.data, examined.checkpoint)

    def edited(self) -> AbstractContextManager[None]:
        return nullcontext() if self.edit is None else self.edit.applied()

    def steps(self, examined: ExaminedTraining, num_steps: int) -> TakenSteps:
        try:
            with self.edited():
                return taken_steps(partial(self.replay, examined), num_steps)
        except NotAppliedError as error:
            return TakenSteps((), error)


def vanished_share(examined: ExaminedTraining, changed: Variant) -> float:
    """The share of the nonzero float32 gradient elements that are zero with a change, in the first applied step."""
    with changed.edited():
        own = _first_gradients(changed.replay(examined))
    exact = _first_gradients(examined.baseline())
    pairs = [(exact[name] != 0, own[name] == 0) for name in exact.keys() & own.keys()]
    num_all = sum(int(is_nonzero.sum()) for is_nonzero, _ in pairs)
    return sum(int((is_nonzero & is_zero).sum()) for is_nonzero, is_zero in pairs) / num_all if num_all else 0.0


def _first_gradients(replay: Replay) -> dict[str, Tensor]:
    """The gradients, by parameter, of the first step that is not skipped; none if there is no such step."""
    found: dict[str, Tensor] = {}

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            found[name] = parameter.grad.detach().clone()

    for name, parameter in replay.model.named_parameters():
        if parameter.requires_grad:
            on_gradient: Callable[[Tensor], None] = partial(note, name)
            parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
    for _ in range(_MOST_STEPS):
        found.clear()
        if not replay.step().is_skipped:
            return found
    return {}
