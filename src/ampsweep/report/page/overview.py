"""The verdicts of several workloads below each other."""

from collections.abc import Sequence

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.workload_verdict import ArmVerdict
from ampsweep.report.dashboard import WorkloadPanels
from ampsweep.report.markup import Markup, name, tag
from ampsweep.report.page.filters import facts_attribute
from ampsweep.report.page.judgement import memory, speed, word
from ampsweep.report.page.tables import grid
from ampsweep.report.sentences.arm_findings import statuses


def overview(workloads: Sequence[WorkloadPanels], keys: Sequence[str]) -> Markup | None:
    """The verdicts of several workloads below each other; nothing for a single one."""
    if len(workloads) < 2:
        return None
    arms = list(dict.fromkeys(arm.arm for one in workloads for arm in one.subject.workload.verdict.arms))
    rows = [_overview_row(one, arms) for one in workloads]
    return grid(
        ("workload", "train in", *arms),
        (False,) * (2 + len(arms)),
        rows,
        caption="All workloads: speed, peak memory and parity of each arm",
        class_="overview",
        attributes=[{"data_facts": facts_attribute(one.subject.workload.facts, keys)} for one in workloads],
    )


def _overview_row(one: WorkloadPanels, arms: Sequence[str]) -> list[Markup]:
    workload = one.subject.workload
    figures = {arm.arm: arm for arm in workload.arms}
    verdicts = {arm.arm: arm for arm in workload.verdict.arms}
    return [
        name(workload.title),
        name(workload.verdict.recommendation.arm or "not decidable yet"),
        *(_in_short(verdicts[arm], figures[arm]) if arm in verdicts else name("-") for arm in arms),
    ]


def _in_short(arm: ArmVerdict, figures: ArmComparison) -> Markup:
    judged = arm.judgements
    shown = [(speed(figures)[0], judged.speed), (memory(figures)[0], judged.memory), ("", judged.parity)]
    if all(told == "not measured" for _, told in shown):
        return name("no pair" if list(figures.statuses) == ["completed"] else statuses(figures.statuses))
    parts = [tag("span", f"{figure} ", word(told)) for figure, told in shown if told != "not measured"]
    return tag("span", *parts, class_="in-short")
