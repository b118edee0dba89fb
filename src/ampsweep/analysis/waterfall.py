"""The waterfall of peak memory: the bytes that an arm saves and adds against the baseline, by category."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import PEAK_MEMORY, Run
from ampsweep.finding import Finding
from ampsweep.text import num_bytes

UNATTRIBUTED: Final = "unattributed"
"""Bytes of a run's peak above the tensors of its traced step: workspaces, rounding, what else the allocator held."""
_MAX_TOLD: Final = 3


@dataclass(frozen=True, kw_only=True)
class WaterfallStep:
    category: str
    baseline_bytes: int
    arm_bytes: int
    change_bytes: int
    """The arm's minus the baseline's: negative is saved."""


class Waterfall(Finding):
    """From the baseline's peak memory to the arm's. The changes add up to the difference of the peaks exactly."""

    baseline_bytes: int
    arm_bytes: int
    steps: tuple[WaterfallStep, ...]
    """Categories that hold bytes at either peak, in the order of the record; `unattributed` last."""
    seed: int
    """The seed of the pair with the median change of the peak, whose bytes these are."""
    same_in_all_pairs: bool
    """All pairs have these changes."""

    @property
    def sentence(self) -> str:
        changed = sorted((one for one in self.steps if one.change_bytes), key=lambda one: -abs(one.change_bytes))
        largest = [f"{category(one.category)} {change(one.change_bytes)}" for one in changed[:_MAX_TOLD]]
        return ", ".join(largest) or "none more or less in any category"


def category(name: str) -> str:
    return name.replace("_", " ")


def change(value: int) -> str:
    return f"+{num_bytes(value)}" if value > 0 else num_bytes(value)


def waterfall(pairs: Sequence[Pair]) -> Waterfall | None:
    """The waterfall of an arm's `pairs` with the baseline; None where no pair has the categories of both peaks."""
    found = [one for pair in pairs if (one := _of_pair(pair)) is not None]
    if not found:
        return None
    found.sort(key=lambda one: (one.arm_bytes - one.baseline_bytes, one.seed))
    middle = found[(len(found) - 1) // 2]
    return replace(middle, same_in_all_pairs=all(_changes(one) == _changes(middle) for one in found))


def _changes(of: Waterfall) -> dict[str, int]:
    return {step.category: step.change_bytes for step in of.steps if step.change_bytes}


def _of_pair(pair: Pair) -> Waterfall | None:
    """The waterfall of one pair: of repeats the first that has the categories."""
    before = next(filter(None, map(_categories, pair.baseline_runs)), None)
    after, seed = next(((found, run.seed) for run in pair.arm_runs if (found := _categories(run))), (None, 0))
    if before is None or after is None:
        return None
    steps = [
        WaterfallStep(
            category=category,
            baseline_bytes=before.get(category, 0),
            arm_bytes=after.get(category, 0),
            change_bytes=after.get(category, 0) - before.get(category, 0),
        )
        for category in dict.fromkeys([*before, *after])
    ]
    steps.sort(key=lambda step: step.category == UNATTRIBUTED)
    return Waterfall(
        baseline_bytes=sum(before.values()),
        arm_bytes=sum(after.values()),
        steps=tuple(step for step in steps if step.baseline_bytes or step.arm_bytes),
        seed=seed,
        same_in_all_pairs=True,
    )


def _categories(run: Run) -> dict[str, int]:
    """Bytes by category that add up to the run's peak; empty without, and of an emulation."""
    peak = run.record.memory.peak
    if not peak or run.emulated is not None:
        return {}
    categories: dict[str, int] = {str(category): size for category, size in peak.items()}
    measured = run.num_bytes(PEAK_MEMORY)
    if measured is not None:
        categories[UNATTRIBUTED] = round(measured) - sum(categories.values())
    return categories
