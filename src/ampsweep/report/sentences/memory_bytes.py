"""Bytes of memory in words: changes by category, and predictions."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.report.sentences.unvouched import not_vouched_for
from ampsweep.text import num_bytes, predicted_bytes

_MAX_CHANGES: Final = 3


def memory_changes(waterfall: Waterfall) -> str:
    """The three categories of memory that changed most: 'activations -1.81 MiB, autocast weights +224 KiB'."""
    changed = sorted((step for step in waterfall.steps if step.change_bytes), key=lambda step: -abs(step.change_bytes))
    largest = [f"{category(step.category)} {change(step.change_bytes)}" for step in changed[:_MAX_CHANGES]]
    return ", ".join(largest) or "none more or less in any category"


def predicted_peaks(arms: Sequence[ArmComparison]) -> str | None:
    """Each arm's predicted peak with its error: 'peak memory of fp32 7.17 MiB (+0.11%), tf32 9.00 GiB'.

    Operators that the predictions do not vouch for are named after them.
    """
    told = [
        f"{arm.arm} {predicted_bytes(arm.predicted_memory_bytes, arm.prediction_error_pct)}"
        for arm in arms
        if arm.predicted_memory_bytes is not None
    ]
    named = not_vouched_for(name for arm in arms for name in arm.unvouched)
    return f"peak memory of {', '.join(told)}{named}" if told else None


def category(name: str) -> str:
    """The name of a category in prose, such as 'optimizer state'."""
    return name.replace("_", " ")


def change(value: int) -> str:
    """A number of bytes more or less."""
    return f"+{num_bytes(value)}" if value > 0 else num_bytes(value)
