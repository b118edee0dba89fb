"""The steps away from float32: from arm to arm, what changes of the five dtypes and what that buys.

Arms are ordered from float32 outward: by their narrowest dtype, then by the bits of all five, then in the order of
reports. An arm's step is from the arm before it that differs from it in fewest dtypes; of several such from the one
that differs in fewest settings, then one of the same mode, then the nearest in this order.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.costs import ArmValues, CostKind
from ampsweep.analysis.statistics import (
    Estimate,
    difference_between,
    in_both,
    mean_difference,
    ratio_between,
    saved_pct,
)
from ampsweep.config.modes import arm_before, distinctions, mode_of, report_order

DTYPE_NAMES: Final = {
    "compute": "compute",
    "parameters": "parameters",
    "gradients": "accumulation",
    "reduction": "reduction",
    "optimizer_state": "optimizer state",
}
"""The five dtypes, in the order of the records, with their names in prose."""

_WIDTH: Final = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class DtypeChange:
    kind: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    name: str
    before: str | None
    after: str | None

    @property
    def text(self) -> str:
        """'bias=none (was lora)', 'without bias=none'."""
        if self.after is None:
            return f"without {self.name}={self.before}"
        return f"{self.name}={self.after}" + ("" if self.before is None else f" (was {self.before})")


@dataclass(frozen=True, kw_only=True)
class DtypeStep:
    """A step from one arm to the next one away from float32. Figures are of the pairs that both have."""

    before: str
    after: str
    dtypes: tuple[DtypeChange, ...]
    settings: tuple[SettingChange, ...]
    """Both are empty where the modes differ in how they compute alone."""
    speedup: Estimate | None
    """Step time before over that after: above 1 is faster."""
    gain: Estimate | None
    """The same of the cost that ranks the arms, where that is another one."""
    memory_saved_bytes: Estimate | None
    """Peak before minus that after."""
    memory_saved_pct: Estimate | None
    loss_gap: Estimate | None
    """Final validation loss after minus that before: positive is worse."""

    @property
    def changes(self) -> str:
        """The changes, dtypes that change alike together: 'parameters, reduction float32 to bfloat16'."""
        alike: dict[tuple[str, str], list[str]] = {}
        for one in self.dtypes:
            alike.setdefault((one.before, one.after), []).append(DTYPE_NAMES[one.kind])
        told = [f"{', '.join(names)} {before} to {after}" for (before, after), names in alike.items()]
        return "; ".join([*told, *(one.text for one in self.settings)]) or "how it computes, no dtype"


def dtype_steps(
    dtypes: Mapping[str, Mapping[str, str]], values: Mapping[str, ArmValues], cost: CostKind
) -> tuple[DtypeStep, ...]:
    """The step to each arm but the first, in the order from float32 outward.

    Args:
        dtypes: arm -> kind -> dtype; an arm without any, or after another one, has no place in the order, and no step.
        values: of the same arms; one without figures is a step all the same, without figures.
        cost: the cost that ranks the arms.
    """
    known = {arm: of for arm, of in dtypes.items() if of and arm_before(arm) is None}
    order = sorted(known, key=lambda arm: _outward(arm, known[arm]))
    steps = []
    for place, after in enumerate(order[1:], start=1):
        nearest = min(enumerate(order[:place]), key=lambda one: _distance(one[1], after, known, place - one[0]))[1]
        one, other = values[nearest], values[after]
        steps.append(
            DtypeStep(
                before=nearest,
                after=after,
                dtypes=_changed_dtypes(known[nearest], known[after]),
                settings=_changed_settings(nearest, after),
                speedup=ratio_between(one["step time"], other["step time"]),
                gain=None if cost == "step time" else ratio_between(one[cost], other[cost]),
                memory_saved_bytes=difference_between(one["memory"], other["memory"]),
                memory_saved_pct=mean_difference(
                    [saved_pct(*both) for both in in_both(one["memory"], other["memory"])]
                ),
                loss_gap=difference_between(other["loss"], one["loss"]),
            )
        )
    return tuple(steps)


def bits(dtype: str) -> int | None:
    """Bits of a number of this dtype.

    >>> bits("bfloat16"), bits("float8_e4m3fn"), bits("bool")
    (16, 8, None)
    """
    found = _WIDTH.search(dtype)
    return None if found is None else int(found[0])


def _outward(arm: str, dtypes: Mapping[str, str]) -> tuple[int, int, int, str]:
    widths = [width for kind in DTYPE_NAMES if kind in dtypes and (width := bits(dtypes[kind])) is not None]
    return -min(widths, default=0), -sum(widths), *report_order(arm)


def _distance(
    before: str, after: str, dtypes: Mapping[str, Mapping[str, str]], num_between: int
) -> tuple[int, int, bool, int]:
    num_dtypes = len(_changed_dtypes(dtypes[before], dtypes[after]))
    num_settings = len(_changed_settings(before, after))
    return num_dtypes, num_settings, mode_of(before) is not mode_of(after), num_between


def _changed_dtypes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[DtypeChange, ...]:
    return tuple(
        DtypeChange(kind=kind, before=before[kind], after=after[kind])
        for kind in DTYPE_NAMES
        if kind in before and kind in after and before[kind] != after[kind]
    )


def _changed_settings(before: str, after: str) -> tuple[SettingChange, ...]:
    mine, theirs = distinctions(after), distinctions(before)
    return tuple(
        SettingChange(name=name, before=theirs.get(name), after=mine.get(name))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    )
