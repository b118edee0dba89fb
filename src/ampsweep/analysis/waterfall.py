"""The waterfall of peak memory: bytes that an arm saves and adds by category."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ampsweep.analysis.figure_keys import PEAK_MEMORY
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import Run
from ampsweep.finding import Finding
from ampsweep.text import num_bytes

UNATTRIBUTED: Final = "unattributed"  # beyond the tensors of the traced step: workspaces, rounding, other allocations
_MAX_LISTED: Final = 3


@dataclass(frozen=True, kw_only=True)
class WaterfallStep:
    category: str
    baseline_bytes: int
    arm_bytes: int
    change_bytes: int  # the arm's minus the baseline's


class Waterfall(Finding):
    """From the baseline's peak to the arm's; the changes add up to the difference exactly."""

    baseline_bytes: int
    arm_bytes: int
    steps: tuple[WaterfallStep, ...]  # categories with bytes at either peak, in the record's order; `unattributed` last
    seed: int  # the seed of the pair shown, the one with the median change of the peak
    same_in_all_pairs: bool

    @property
    def sentence(self) -> str:
        changed = sorted((step for step in self.steps if step.change_bytes), key=lambda step: -abs(step.change_bytes))
        largest = [
            f"{step.category.replace('_', ' ')} {'+' if step.change_bytes > 0 else ''}{num_bytes(step.change_bytes)}"
            for step in changed[:_MAX_LISTED]
        ]
        return ", ".join(largest) or "none more or less in any category"


def waterfall(pairs: Sequence[Pair]) -> Waterfall | None:
    """The waterfall of an arm's pair with the median change; None if no pair has categories of both peaks."""
    found = [of for pair in pairs if (of := _of_pair(pair)) is not None]
    if not found:
        return None
    found.sort(key=lambda of: (of.arm_bytes - of.baseline_bytes, of.seed))
    middle = found[(len(found) - 1) // 2]
    return replace(middle, same_in_all_pairs=all(_changes(other) == _changes(middle) for other in found))


def _changes(of: Waterfall) -> dict[str, int]:
    return {step.category: step.change_bytes for step in of.steps if step.change_bytes}


def _of_pair(pair: Pair) -> Waterfall | None:
    before = next(filter(None, map(_categories, pair.baseline_runs)), None)
    after, seed = next(((found, run.seed) for run in pair.arm_runs if (found := _categories(run))), (None, 0))
    if before is None or after is None:
        return None
    held = {category: (before.get(category, 0), after.get(category, 0)) for category in {**before, **after}}
    steps = [
        WaterfallStep(category=category, baseline_bytes=former, arm_bytes=own, change_bytes=own - former)
        for category, (former, own) in held.items()
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
    """Bytes by category that add up to the run's peak; empty without, and for an emulation."""
    peak = run.record.memory.peak
    if not peak or run.emulated is not None:
        return {}
    categories: dict[str, int] = {str(category): size for category, size in peak.items()}
    measured = run.num_bytes(PEAK_MEMORY)
    if measured is not None:
        categories[UNATTRIBUTED] = round(measured) - sum(categories.values())
    return categories
