"""Updates of weights that rounding discards, as part of each step's movement of the weights in float32."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from ampsweep.config.errors import UserError
from ampsweep.config.modes import MODES, PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.state.findings import TriedMovement, UpdatesLost
from ampsweep.monitors.magnitudes import flat, taken
from ampsweep.monitors.numerics import has_gradient
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.step import parameters_of
from ampsweep.precision.parameter_chunks import HALF
from ampsweep.training.update_observers import UpdateObserver

_MOST_STEPS: Final = 6
_MOST_LOST: Final = 0.5  # the share of a parameter's elements, of its movement, and of all weights that may be lost
_LOOKED_AT: Final = 10_000  # steps in which the highest learning rate is looked for
_NUDGE: Final = 2.0**-6  # a relative change that every half-precision format can hold

Updates = list[dict[str, tuple[Tensor, Tensor]]]
"""By step, then by parameter, the changes of an even selection of elements, and whether each has a gradient."""


@dataclass(frozen=True)
class ParameterUpdates:
    name: str
    num_elements: int
    lost: float  # the share of the elements with a gradient that a step leaves unchanged
    moved: float  # the elements' movement in the direction of float32's, as a share of it

    @property
    def is_lost(self) -> bool:
        return self.lost >= _MOST_LOST and self.moved <= _MOST_LOST


def lost_updates(examined: ExaminedTraining) -> UpdatesLost | None:
    """Find out if half of the weights do not move although the optimizer would move them in float32, at the highest
    learning rate of the schedule, so that a warm-up is no fault. The cheapest mode that moves them is the change."""
    replay, num_steps = examined.replay(), min(len(examined.own_steps.steps), _MOST_STEPS)
    dtype = next((p.dtype for p in replay.model.parameters() if p.requires_grad and p.dtype in HALF), None)
    if dtype is None:
        return None
    exact = _updates(examined.baseline(), num_steps)
    found = _compared(replay, exact)
    lost = [updates for updates in found if updates.is_lost]
    if sum(each.num_elements for each in lost) < _MOST_LOST * sum(each.num_elements for each in found):
        return None
    if _is_overwritten(replay):
        return None
    names, largest_first = {each.name for each in lost}, sorted(lost, key=lambda each: -each.num_elements)
    finding = UpdatesLost(
        modules=list(dict.fromkeys(each.name.rpartition(".")[0] for each in largest_first)),
        dtype=dtype_name(dtype),
        num_steps=num_steps,
        unchanged_pct=100 * _mean(found, "lost"),
        moved_pct=100 * _mean(found, "moved"),
    )
    for mode in _modes_with_exact_updates(examined.config.precision):
        if examined.seconds_left <= 0:
            break
        try:
            moved = _compared(Variant(precision=PRECISION_MODES[mode]).replay(examined), exact)
        except UserError:  # the mode does not take this optimizer or device
            continue
        if _mean([each for each in moved if each.name in names], "moved") > _MOST_LOST:
            proof = TriedMovement(mends=True, moved_pct=100 * _mean(moved, "moved"))
            return replace(finding, change=Change(overrides=[f"precision={mode}"]), proof=proof)
    return finding


def _modes_with_exact_updates(precision: PrecisionConfig) -> Iterator[str]:
    """The modes that keep the parameters' dtype, then the one with float32 parameters."""
    kept = (mode for mode in MODES.values() if mode.implementation and mode.settings.mode != precision.mode)
    yield from (mode.name for mode in kept if mode.settings.parameters == precision.parameters)
    yield "amp_fp16" if precision.parameters == "float16" else "amp_bf16"


class _Movement(UpdateObserver):
    def __init__(self, replay: Replay) -> None:
        self._names = {parameter: name for name, parameter in replay.model.named_parameters()}
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        self.changes: dict[str, tuple[Tensor, Tensor]] = {}

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        with_gradient = ((p, p.grad) for p in parameters_of(optimizer) if p.grad is not None)
        self._before = {self._names[p]: (taken(flat(p)), has_gradient(p, grad)) for p, grad in with_gradient}

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in parameters_of(optimizer):
            if (before := self._before.get(self._names[parameter])) is not None:
                self.changes[self._names[parameter]] = taken(flat(parameter)) - before[0], before[1]


def at_full_rate(replay: Replay) -> Replay:
    """Let a replay train at the highest learning rate of its schedule."""
    schedule = replay.trainer.schedule
    if not schedule.is_constant:

        def rate(step: int) -> float:
            schedule.set(step)
            return float(schedule.learning_rate() or 0.0)

        schedule.set(max(range(min(replay.trainer.num_steps, _LOOKED_AT)), key=rate))
        schedule.is_constant = True  # the trainer leaves it there
    return replay


def _updates(replay: Replay, num_steps: int) -> Updates:
    movement, found = _Movement(at_full_rate(replay)), Updates()
    replay.trainer.observers.append(movement)
    for _ in range(num_steps):
        movement.changes = {}
        is_skipped = replay.step().is_skipped
        found.append({} if is_skipped else movement.changes)
    replay.trainer.observers.remove(movement)
    return found


def _compared(replay: Replay, exact: Updates) -> list[ParameterUpdates]:
    """Compare the updates of each parameter with those of the same steps in float32; steps that are skipped in either
    training do not count."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for own, base in zip(_updates(replay, len(exact)), exact, strict=True):
        for name in [name for name in base if name in own]:
            (change, has_own), (wide, has_gradient) = own[name], base[name]
            is_updated = has_own & has_gradient & (wide != 0)
            change, wide = (part[is_updated].cpu().double() for part in (change, wide))
            added = (change == 0).sum(), is_updated.sum(), (change * wide.sign()).sum(), wide.abs().sum()
            sums[name] = [total + float(more) for total, more in zip(sums[name], added, strict=True)]
    sizes = {name: parameter.numel() for name, parameter in replay.model.named_parameters()}
    return [
        ParameterUpdates(name, sizes[name], unchanged / num, moved / movement)
        for name, (unchanged, num, moved, movement) in sums.items()
        if num
    ]


def _mean(updates: Sequence[ParameterUpdates], share: str) -> float:
    total = sum(each.num_elements for each in updates)
    return sum(getattr(each, share) * each.num_elements for each in updates) / total if total else 0.0


def _is_overwritten(replay: Replay) -> bool:
    """Return True if a step overwrites what the parameters hold, as from exact copies that an optimizer keeps."""
    parameters: list[Tensor] = [p for p in replay.model.parameters() if p.requires_grad and p.dtype in HALF]
    with torch.no_grad():
        torch._foreach_mul_(parameters, 1 + _NUDGE)
    nudged = [taken(flat(parameter)) for parameter in parameters]
    replay.step()
    changed = [(taken(flat(p)) != before) for p, before in zip(parameters, nudged, strict=True)]
    return float(torch.cat(changed).float().mean()) > _MOST_LOST
