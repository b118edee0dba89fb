"""The verdict on a workload as lines of text, for the console and for documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.workload_verdict import Verdict
from ampsweep.report.sentences.arm_findings import memory, parity, speed, time_to_loss, within_run
from ampsweep.report.sentences.explaining import caution, reason
from ampsweep.report.sentences.front import front_line
from ampsweep.report.sentences.memory_bytes import memory_changes, predicted_peaks
from ampsweep.report.sentences.pitfalls import pitfall
from ampsweep.report.sentences.recommending import goes_by, standing

Topic = Literal[
    "goes by",
    "speed",
    "within-run",
    "memory",
    "bytes",
    "predicted",
    "parity",
    "time to loss",
    "front",
    "pitfall",
    "why",
    "refused",
    "undecided",
]


@dataclass(frozen=True)
class VerdictLine:
    """One line about an arm, or (None) about all, on one topic."""

    topic: Topic
    arm: str | None
    text: str


def verdict_lines(workload: WorkloadComparison) -> list[VerdictLine]:
    """Topic by topic, and within a topic arm by arm; what was not measured has no line.

    Contaminated runs have none either: the notes of their arm name each with its cause.
    """
    verdict, baseline = workload.verdict, workload.verdict.recommendation.baseline
    arms, standings = verdict.arms, verdict.recommendation.standings
    ranked = goes_by(verdict)
    return [
        *([] if ranked is None else [VerdictLine("goes by", None, ranked)]),
        *(VerdictLine("speed", a.arm, speed(a.judgements)) for a in arms if _known(a.judgements.speed)),
        *(VerdictLine("within-run", a.arm, within_run(a.within_run)) for a in workload.arms if a.within_run),
        *(VerdictLine("memory", a.arm, memory(a.judgements)) for a in arms if _known(a.judgements.memory)),
        *(VerdictLine("bytes", a.arm, memory_changes(a.waterfall)) for a in arms if a.waterfall is not None),
        *([VerdictLine("predicted", None, told)] if (told := predicted_peaks(workload.arms)) is not None else []),
        *(VerdictLine("parity", a.arm, parity(a.judgements)) for a in arms if a.parities),
        *(VerdictLine("time to loss", a.arm, time_to_loss(a.time_to_loss)) for a in arms if a.time_to_loss),
        *([] if verdict.front is None else [VerdictLine("front", None, front_line(verdict.front))]),
        *(VerdictLine("pitfall", ", ".join(of), text) for text, of in _pitfalls(verdict).items()),
        *(VerdictLine("why", one.arm, reason(one, baseline)) for one in verdict.reasons if one.kind != "contaminated"),
        *(VerdictLine("refused", one.arm, standing(one, verdict)) for one in standings if one.standing == "refused"),
        *(
            VerdictLine("undecided", one.arm, standing(one, verdict))
            for one in standings
            if one.standing == "undecided"
        ),
    ]


def console_lines(workload: WorkloadComparison) -> Iterator[VerdictLine]:
    """The lines for the console: those that the table, its notes and the conclusion beside them do not have."""
    told = {caution(one) for one in workload.cautions}
    unsupported = {arm.arm for arm in workload.arms if list(arm.statuses) == ["unsupported"]}
    for line in verdict_lines(workload):
        is_told = line.topic in ("speed", "memory", "undecided") or line.text in told
        if not is_told and not (line.topic == "refused" and line.arm in unsupported):
            yield line


def _pitfalls(of: Verdict) -> dict[str, list[str]]:
    """Each pitfall in words, with its arms."""
    arms: dict[str, list[str]] = {}
    for arm, one in of.pitfalls:
        arms.setdefault(pitfall(one), []).append(arm)
    return arms


def _known(word: str) -> bool:
    return word != "not measured"
