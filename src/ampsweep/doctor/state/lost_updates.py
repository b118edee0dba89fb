"""Updates of weights that rounding discards."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from ampsweep.config.errors import UserError
from ampsweep.config.modes import MODES, PRECISION_MODES
from ampsweep.doctor.diagnosis import Change, DoctorFinding, TriedChange
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import Replay
from ampsweep.monitors.magnitudes import flat, taken
from ampsweep.monitors.numerics import has_gradient
from ampsweep.numeric_formats import dtype_name
from ampsweep.precision.parameter_chunks import HALF

_MOST_STEPS: Final = 6
_MOST_LOST: Final = 0.5  # the share of a tensor's elements, of their movement, and of all weights that may be lost
_LOOKED_AT: Final = 10_000  # steps in which the highest learning rate is looked for
_NUDGE: Final = 2.0**-6  # a relative change that every half-precision format can hold

Updates = Sequence[dict[str, Tensor]]
"""By step, then by parameter, what is added to an even selection of its elements: NaN to those without a gradient."""


@dataclass(frozen=True)
class Movement:
    unchanged: float  # the share of the elements that a step does not change
    moved: float  # how far they move in float32's direction, as a share of its movement

    @staticmethod
    def of(added: Tensor, exact: Tensor) -> "Movement":
        """From what steps add to some elements, and what float32 adds; NaN if that moves none of them."""
        is_known = added.isfinite() & exact.isfinite() & (exact != 0)
        added, exact = added[is_known], exact[is_known]
        moved = float((added * exact.sign()).sum() / exact.abs().sum())
        return Movement(float((added == 0).double().mean()), moved)

    @property
    def is_lost(self) -> bool:
        return self.unchanged >= _MOST_LOST and self.moved <= _MOST_LOST


class UpdatesLost(DoctorFinding):
    template = "{unchanged_pct} of weights with a gradient do not change in a step: {dtype} rounds their updates away"
    complaint = "loss"
    seen = ("at the full learning rate the weights move by {moved_pct} of what float32 moves them",)
    remedy = "keep the exact weights, or round them stochastically"
    remedy_by_overrides = "let the optimizer update in float32"
    dtype: str
    unchanged_pct: float
    moved_pct: float


def at_full_rate(replay: Replay) -> Replay:
    """Let a replay train at the highest learning rate of its schedule, so that a warm-up is no fault."""
    schedule, rates = replay.trainer.schedule, list[float]()
    for step in range(min(replay.trainer.num_steps, _LOOKED_AT)):
        schedule.set(step)
        rates.append(float(schedule.learning_rate() or 0.0))
    schedule.set(rates.index(max(rates)))
    schedule.is_constant = True  # the trainer leaves it there
    return replay


def lost_updates(examined: ExaminedTraining) -> UpdatesLost | None:
    """Find out if half of the weights do not move although the optimizer would move them in float32, at the highest
    learning rate of the schedule. The cheapest mode that moves them is the change."""
    replay, num_steps = examined.replay(), min(len(examined.own_steps.steps), _MOST_STEPS)
    half: list[Tensor] = [p for p in replay.model.parameters() if p.requires_grad and p.dtype in HALF]
    if not half:
        return None
    exact = _updates(examined.baseline(), num_steps)
    found = _movements(replay, exact)
    sizes = {name: parameter.numel() for name, parameter in replay.model.named_parameters() if name in found}
    lost = sorted((name for name in sizes if found[name].is_lost), key=lambda name: -sizes[name])
    num_all, num_lost = sum(sizes.values()), sum(sizes[name] for name in lost)
    if num_lost <= _MOST_LOST * num_all or _is_overwritten(replay, half):
        return None
    finding = UpdatesLost(
        modules=list(dict.fromkeys(name.rpartition(".")[0] for name in lost)),
        dtype=dtype_name(half[0].dtype),
        unchanged_pct=100 * sum(found[name].unchanged * size for name, size in sizes.items()) / num_all,
        moved_pct=100 * sum(found[name].moved * size for name, size in sizes.items()) / num_all,
    )
    own = examined.config.precision
    kept = (mode for mode in MODES.values() if mode.implementation and mode.settings.mode != own.mode)
    modes = [mode.name for mode in kept if mode.settings.parameters == own.parameters]
    for mode in (*modes, "amp_fp16" if own.parameters == "float16" else "amp_bf16"):
        if examined.seconds_left <= 0:
            break
        try:
            after = _movements(Variant(precision=PRECISION_MODES[mode]).replay(examined), exact)
        except UserError:  # the mode does not take this optimizer or device
            continue
        moved = sum(after[name].moved * sizes[name] for name in lost if name in after) / num_lost
        if moved > _MOST_LOST:
            change, proof = Change(overrides=[f"precision={mode}"]), TriedChange(mends=True)
            return replace(finding, change=change, proof=proof)
    return finding


def _updates(replay: Replay, num_steps: int) -> Updates:
    weights = {name: p for name, p in at_full_rate(replay).model.named_parameters() if p.requires_grad}
    used: dict[str, Tensor] = {}

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            used[name] = has_gradient(parameter, parameter.grad)

    for name, parameter in weights.items():
        parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
    found: list[dict[str, Tensor]] = []
    for _ in range(num_steps):
        used.clear()
        before = {name: taken(flat(parameter)) for name, parameter in weights.items()}
        is_skipped = replay.step().is_skipped
        added = {name: taken(flat(weights[name])) - before[name] for name in used if not is_skipped}
        found.append({name: of.masked_fill(~used[name], math.nan).cpu().double() for name, of in added.items()})
    return found


def _movements(replay: Replay, exact: Updates) -> dict[str, Movement]:
    """The movement of each parameter, beside the same steps in float32; those that either skips do not count."""
    pairs: dict[str, list[Tensor]] = defaultdict(list)
    for own, base in zip(_updates(replay, len(exact)), exact, strict=True):
        for name in own.keys() & base.keys():
            pairs[name].append(torch.stack([own[name], base[name]]))
    found = {name: Movement.of(*torch.cat(of, 1)) for name, of in pairs.items()}
    return {name: movement for name, movement in found.items() if not math.isnan(movement.moved)}


def _is_overwritten(replay: Replay, weights: list[Tensor]) -> bool:
    """Return True if a step overwrites what the weights hold, as from exact copies that an optimizer keeps."""
    with torch.no_grad():
        torch._foreach_mul_(weights, 1 + _NUDGE)
    (added,) = _updates(replay, 1)
    with_gradient = torch.cat([of[~of.isnan()] for of in added.values()])
    return float((with_gradient != 0).double().mean()) > _MOST_LOST
