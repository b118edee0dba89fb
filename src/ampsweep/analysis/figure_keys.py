"""The recorded metrics behind the figures that are compared."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ampsweep.metrics import LOSSES, METRICS, goal_of
from ampsweep.records import RunRecord

VAL_LOSS: Final = "val/loss"
PEAK_MEMORY: Final = "memory/peak_allocated_gib"
MEMORY_WORDS: Final = {
    PEAK_MEMORY: "peak memory",
    "memory/process_gib": "process memory",
    "device/memory_used_gib": "device memory",
}
"""Memory that can be compared, the best first, in words."""


@dataclass(frozen=True, kw_only=True)
class FigureKeys:
    """What stands for `val/loss` and `memory/peak_allocated_gib`, by which the analysis calls parity and memory.

    Texts of tables and panels are written for these two; `named` puts in the figures that are compared instead.
    """

    metric: str = VAL_LOSS
    is_higher_better: bool = False
    memory: str = PEAK_MEMORY
    is_recorded: bool = False  # True if a run has the metric

    def recorded(self, key: str) -> str:
        """The key in records of what the analysis calls `key`."""
        return {VAL_LOSS: self.metric, PEAK_MEMORY: self.memory}.get(key, key)

    @property
    def metric_words(self) -> str:
        return "loss" if self.metric == VAL_LOSS else self.metric

    @property
    def memory_words(self) -> str:
        return MEMORY_WORDS[self.memory]

    def named(self, text: str) -> str:
        """`text` about the validation loss and the peak memory, with the names of the figures that are compared."""
        words, metric, memory = dict[str, str](), self.metric, self.memory_words
        if metric != VAL_LOSS:
            words = dict.fromkeys(("validation loss", "val loss", "Validation loss"), metric)
            words["loss gap"] = f"{metric} gap"
        if self.is_higher_better:
            words |= {"positive is worse": "positive is better", "Left of zero": "Right of zero"}
        if self.memory != PEAK_MEMORY:
            words |= {"peak memory": memory, "Peak memory": memory.capitalize(), "peak allocated": memory}
        for standard, own in words.items():
            text = text.replace(standard, own)
        return text


def chosen_metric(records: Iterable[RunRecord], metric: str, goal: str | None) -> FigureKeys:
    """The keys for `report.metric` and `report.goal`: if no record has `val/loss`, the first of `LOSSES` that any has.

    A direction that is neither given nor known by the metric's name is that of a loss.
    """
    known = logged_keys(records)
    if metric == VAL_LOSS:
        by_name = {key.replace(".", "/"): key for key in reversed(known)}  # nested values of W&B have dotted keys
        metric = next((by_name[name] for name in LOSSES if name in by_name), metric)
    is_higher_better = (goal or goal_of(metric)) == "maximize"
    return FigureKeys(metric=metric, is_higher_better=is_higher_better, is_recorded=metric in known)


def logged_keys(records: Iterable[RunRecord]) -> list[str]:
    """The keys of the values of trainings, without what the suite measures such as times, the most common first."""
    ours = {key for key in METRICS if not key.startswith(("train/", "val/"))}
    values = (item for record in records for item in record.summary.items())
    counts = Counter(key for key, value in values if type(value) in (int, float) and key not in ours)
    return [key for key, _ in counts.most_common()]
