"""Integers that half precision rounds although something is made of them: an index, a position, an angle."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.comparison import SideBySide
from ampsweep.doctor.side_by_side.recorded_step import matched, selected, to_nearest
from ampsweep.doctor.smallest_change import smallest_change
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Site

_LARGE_ERROR: Final = 2.0**-4  # the relative error by rounded integers alone from which a result is wrong
_MOST_TRIED: Final = 4  # lines that round integers, of which the consequences are looked for
_LARGEST: Final = 2.0**24  # all larger numbers in float32 are integers

Facts = dict[str, Any]  # of a finding, by name


class IntegersRounded(DoctorFinding):
    template = "{dtype} cannot hold the integers of {operator}{inside}{at}: {exact} becomes {rounded}"
    complaint = "numerics"
    seen = ("in a float32 step with these alone rounded, the result of {effect} has an error of {effect_pct}",)
    remedy = "make them in float32, or as integers"
    remedy_by_overrides = "keep them in float32"
    dtype: str
    exact: int  # the first integer that is rounded
    rounded: int
    effect: str  # the first operator with a large error
    effect_pct: float


def find_rounded_integers(
    examined: ExaminedTraining, mends_loss: Callable[[Variant], bool] | None = None
) -> IntegersRounded | None:
    """Find the first line that rounds integers from which a large error comes, and the smallest change with which a
    step rounds them nowhere, and which `mends_loss` if that is given; None if there is no such change."""
    sides = SideBySide(examined)
    by_line = {site[2]: (site, rounded) for site, rounded in reversed(_rounded_in(sides).items())}
    for site, rounded in [*by_line.values()][::-1][:_MOST_TRIED]:
        if (effect := _effect(sides, site)) is None:
            continue

        def is_exact(replay: Replay, rounded: Facts = rounded) -> bool:
            return rounded not in _rounded_in(SideBySide(examined, own=replay)).values()

        _, module, place, operator, _ = site
        change = smallest_change(examined, place, [[module or ""]], is_exact, mends_loss)
        if change is None:
            return None
        modules, proof = [] if module is None else [module], TriedChange(mends=True)
        facts = rounded | effect | {"place": place, "operator": operator}
        return IntegersRounded(modules=modules, change=change, proof=proof, **facts)
    return None


def _rounded_in(sides: SideBySide) -> dict[Site, Facts]:
    """The integers that the other step has in a dtype that cannot hold them, by the call that gets or makes them."""
    found: dict[Site, Facts] = {}

    def note(site: Site, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if (rounded := _first_rounded(tensor, dtype)) is not None:
            found.setdefault(site, rounded)
        return tensor

    sides.float32_step(note)
    return found


def _first_rounded(tensor: Tensor, dtype: torch.dtype) -> Facts | None:
    values = selected(tensor)
    rounded = to_nearest(values, dtype)
    are_integers = bool(((values == values.round()) & (values.abs() <= _LARGEST)).all())
    is_other = (values != rounded) & rounded.isfinite()
    if not are_integers or not bool(is_other.any()):
        return None
    return {"exact": int(values[is_other][0]), "rounded": int(rounded[is_other][0]), "dtype": dtype_name(dtype)}


def _effect(sides: SideBySide, site: Site) -> Facts | None:
    """The first call with a large error in a float32 step in which the integers of one call alone are rounded."""

    def rounds(at: Site, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return to_nearest(tensor, dtype) if at == site and _first_rounded(tensor, dtype) is not None else tensor

    for recorded, exact in matched(sides.float32_step(rounds), sides.exact):
        if (error := recorded.error_beside(exact)) >= _LARGE_ERROR:
            call = recorded.call
            named = f"{call.operator} ({call.place})" if call.place else call.operator
            return {"effect": named, "effect_pct": 100 * error}
    return None
