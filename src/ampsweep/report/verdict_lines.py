"""The verdict on a workload as lines of text, for the console and for documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.text import num_bytes, predicted_bytes

Topic = Literal[
    "speed",
    "within-run",
    "memory",
    "bytes",
    "predicted",
    "parity",
    "time to loss",
    "why",
    "refused",
    "undecided",
]

_MAX_CHANGES: Final = 3


@dataclass(frozen=True)
class VerdictLine:
    """What is said of an arm, or (None) of all, about one topic."""

    topic: Topic
    arm: str | None
    text: str


def verdict_lines(workload: WorkloadComparison) -> list[VerdictLine]:
    """Topic by topic, and within a topic arm by arm; what was not measured has no line.

    Contaminated runs have none either: the notes of their arm name each with its cause.
    """
    verdict = workload.verdict
    return [
        *(VerdictLine("speed", a.arm, a.judgements.speed_text) for a in verdict.arms if _known(a.judgements.speed)),
        *(VerdictLine("within-run", a.arm, a.within_run.text) for a in workload.arms if a.within_run is not None),
        *(VerdictLine("memory", a.arm, a.judgements.memory_text) for a in verdict.arms if _known(a.judgements.memory)),
        *(VerdictLine("bytes", a.arm, changes(a.waterfall)) for a in verdict.arms if a.waterfall is not None),
        *(VerdictLine("predicted", None, text) for text in _predicted(workload)),
        *(VerdictLine("parity", a.arm, a.judgements.parity_text) for a in verdict.arms if a.parities),
        *(VerdictLine("time to loss", a.arm, a.time_to_loss.text) for a in verdict.arms if a.time_to_loss is not None),
        *(VerdictLine("why", reason.arm, reason.text) for reason in verdict.reasons if reason.kind != "contaminated"),
        *(VerdictLine("refused", s.arm, s.reason) for s in verdict.recommendation.standings if s.standing == "refused"),
        *(
            VerdictLine("undecided", s.arm, s.reason)
            for s in verdict.recommendation.standings
            if s.standing == "undecided"
        ),
    ]


def console_lines(workload: WorkloadComparison) -> Iterator[VerdictLine]:
    """Those that neither the table nor its notes nor the conclusion, which stand beside them there, say as well."""
    told = {reason.text for reason in workload.verdict.reasons if reason.kind == "too_small"}
    unsupported = {arm.arm for arm in workload.arms if list(arm.statuses) == ["unsupported"]}
    for line in verdict_lines(workload):
        is_told = line.topic in ("speed", "memory", "undecided") or line.text in told
        if not is_told and not (line.topic == "refused" and line.arm in unsupported):
            yield line


def _predicted(workload: WorkloadComparison) -> Iterator[str]:
    """Each arm's predicted peak with its error: 'peak of fp32 7.17 MiB (+0.11%), of tf32 9.00 GiB'."""
    told = [
        f"{arm.arm} {predicted_bytes(arm.predicted_memory_bytes, arm.prediction_error_pct)}"
        for arm in workload.arms
        if arm.predicted_memory_bytes is not None
    ]
    if told:
        yield f"peak memory of {', '.join(told)}"


def changes(waterfall: Waterfall) -> str:
    """The three categories of memory that changed most: 'activations -1.81 MiB, autocast weights +224 KiB'."""
    changed = sorted((step for step in waterfall.steps if step.change_bytes), key=lambda step: -abs(step.change_bytes))
    largest = [f"{category(step.category)} {change(step.change_bytes)}" for step in changed[:_MAX_CHANGES]]
    return ", ".join(largest) or "none more or less in any category"


def category(name: str) -> str:
    """`optimizer_state` as people say it."""
    return name.replace("_", " ")


def change(value: int) -> str:
    """A number of bytes more or less."""
    return f"+{num_bytes(value)}" if value > 0 else num_bytes(value)


def _known(word: str) -> bool:
    return word != "not measured"
