"""The verdict card of a workload: the recommendation, then speed, memory and parity of each arm, then the reasons."""

from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.workload_verdict import ArmVerdict, Verdict
from ampsweep.report.columns import ARM, Cell, columns_for
from ampsweep.report.dashboard import WorkloadPanels
from ampsweep.report.dtype_step_table import dtype_step_table
from ampsweep.report.estimate_text import estimate, ratio_estimate
from ampsweep.report.figures.pair_effects import gap
from ampsweep.report.page.filters import facts_attribute
from ampsweep.report.page.markup import Markup, arm_name, join, name, sentence, tag
from ampsweep.report.page.tables import details, grid, html_table
from ampsweep.report.palette import ArmStyle
from ampsweep.report.rank_tables import arms_with_ranks, lines_of_ranks, ranks_table
from ampsweep.report.sentences import arm_findings, dtype_steps, explaining, front, pitfalls, ranks, recommending
from ampsweep.report.sentences.arm_findings import metric_words
from ampsweep.text import num_bytes, number, percent

_GOOD: Final = ("▲", "good")
_BAD: Final = ("▼", "bad")
_EVEN: Final = ("=", "even")
_OPEN: Final = ("?", "open")
_TONES: Final = {
    "faster": _GOOD,
    "saves": _GOOD,
    "equivalent": _GOOD,
    "better": _GOOD,
    "slower": _BAD,
    "adds": _BAD,
    "worse": _BAD,
    "same": _EVEN,
}
"""Sign and tone of words that answer the question; the other words leave it open."""


def word(told: str) -> Markup:
    """A word of a judgement, with a sign and a tone that say whether it is good news."""
    sign, tone = _TONES.get(told, _OPEN)
    return tag("span", tag("span", sign, aria_hidden="true"), f" {told}", class_=f"word {tone}")


def speed(arm: ArmComparison) -> tuple[str, str]:
    """Speedup over the baseline: the figure and its uncertainty."""
    if arm.speedup is None:
        return "-", ""
    value, ends = ratio_estimate(arm.speedup)
    return f"{value}x", _uncertainty(arm.speedup, "" if ends is None else f"[{ends[0]}, {ends[1]}]x")


def memory(arm: ArmComparison) -> tuple[str, str]:
    """Change of the peak memory against the baseline, in percent; then in bytes."""
    saved, share = arm.memory_saved_bytes, arm.memory_saved_pct
    if saved is None or share is None:
        return "-", ""
    _, ends = estimate(-share, sign=True)
    change = "0%" if saved.value == 0 else f"{'-' if saved.value > 0 else '+'}{percent(abs(share.value))}"
    interval = "" if ends is None else f"[{ends[0]}, {ends[1]}]%, "
    size = "" if saved.value == 0 else f"{num_bytes(abs(saved.value))} {'less' if saved.value > 0 else 'more'}"
    return change, _uncertainty(share, f"{interval}{size}")


def _uncertainty(of: Estimate, figures: str) -> str:
    n = f"exact, n={of.n}" if of.exact else f"n={of.n}"
    return f"{figures}, {n}" if figures else n


def parity(held: Parity | None) -> tuple[str, str]:
    """Gap of a final metric; then the interval that decides and the margin it is held against."""
    if held is None:
        return "-", ""
    mean = gap(held)
    value, ends = estimate(mean, digits=2, sign=True)
    interval = "" if ends is None else f"[{ends[0]}, {ends[1]}], "
    return value, _uncertainty(mean, f"{interval}margin ±{number(held.margin, 2)} in {metric_words(held.metric)}")


def verdict_card(one: WorkloadPanels, styles: Mapping[str, ArmStyle], keys: Sequence[str]) -> Markup:
    """The card of one workload: the answer first, then its grounds."""
    workload, verdict = one.data.workload, one.data.workload.verdict
    figures = {arm.arm: arm for arm in workload.arms}
    return tag(
        "article",
        tag("h3", name(workload.title)),
        _answer(verdict, styles),
        *(_arm(arm, figures[arm.arm], verdict, styles) for arm in verdict.arms),
        tag(
            "div",
            _to_decide(verdict, styles),
            _reasons(verdict, styles),
            _within_runs(workload.arms, styles),
            class_="grounds-lists",
        ),
        _steps(verdict, styles),
        _ranks(workload, styles),
        details(
            "All figures, in words and as a table",
            tag("p", name(recommending.conclusion(workload))),
            _all_figures(workload.arms, styles),
            _notes(workload.arms),
        ),
        class_="verdict",
        data_facts=facts_attribute(workload.facts, keys),
    )


def _answer(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup:
    """The recommendation: its first words large, its grounds below."""
    headline, colon, grounds = recommending.recommendation(verdict).partition(": ")
    arm, ranked = verdict.recommendation.arm, recommending.goes_by(verdict)
    return tag(
        "div",
        tag("p", name(headline + colon.strip()), class_="headline"),
        tag("p", name(grounds), class_="grounds") if grounds else None,
        tag("p", sentence(f"goes by {ranked}", styles), class_="note") if ranked is not None else None,
        tag("p", sentence(front.front_line(verdict.front), styles), class_="note") if verdict.front else None,
        class_=f"answer {'decided' if arm else 'undecided'}",
        style=f"--arm:{styles[arm].colour}" if arm is not None else None,
    )


def _arm(arm: ArmVerdict, figures: ArmComparison, verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup:
    judged = arm.judgements
    standing = next((one for one in verdict.recommendation.standings if one.arm == arm.arm), None)
    loss = arm.parities[0] if arm.parities else None
    tiles = [
        _tile("Speed", *speed(figures), judged.speed, arm_findings.speed_remarks(judged)),
        _tile("Peak memory", *memory(figures), judged.memory),
        _tile("Parity", *parity(loss), judged.parity),
    ]
    is_measured = any(one is not None for one in (figures.speedup, figures.memory_saved_bytes, loss))
    told = [pitfalls.pitfall(one) for of, one in verdict.pitfalls if of == arm.arm]
    is_explained = standing is not None and standing.standing in ("refused", "undecided")
    return tag(
        "section",
        tag(
            "h4",
            arm_name(arm.arm, styles[arm.arm]),
            tag("span", standing.standing, class_=f"badge {standing.standing}") if standing else None,
        ),
        tag("dl", *tiles, class_="tiles") if is_measured else None,
        tag("p", sentence(recommending.standing(standing, verdict), styles), class_="why")
        if standing and is_explained
        else None,
        tag("p", sentence(arm_findings.time_to_loss(arm.time_to_loss), styles), class_="why")
        if arm.time_to_loss
        else None,
        *(tag("p", sentence(one, styles), class_="why") for one in told),
        class_="arm-verdict",
        data_arm=arm.arm,
        style=f"--arm:{styles[arm.arm].colour}",
    )


def _tile(title: str, figure: str, uncertainty: str, told: str, remarks: Sequence[str] = ()) -> Markup:
    return tag(
        "div",
        tag("dt", title),
        tag(
            "dd",
            tag("span", figure, class_="figure"),
            word(told),
            tag("span", uncertainty, class_="uncertainty") if uncertainty else None,
            *(tag("span", remark, class_="uncertainty") for remark in remarks),
        ),
        class_="tile",
    )


def _to_decide(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup | None:
    steps = [tag("li", sentence(step, styles)) for step in recommending.to_decide(verdict)]
    return tag("section", tag("h4", "What would decide it"), tag("ul", *steps)) if steps else None


def _reasons(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup | None:
    reasons = [(one, explaining.reason(one, verdict.recommendation.baseline)) for one in verdict.reasons]
    items = [
        tag(
            "li",
            join(arm_name(one.arm, styles[one.arm]), ": ") if one.arm is not None else None,
            sentence(text, styles) if one.arm is None else name(f"{text}."),
        )
        for one, text in reasons
    ]
    return tag("section", tag("h4", "Why"), tag("ul", *items)) if items else None


def _within_runs(arms: Sequence[ArmComparison], styles: Mapping[str, ArmStyle]) -> Markup | None:
    items = [
        tag(
            "li",
            join(arm_name(arm.arm, styles[arm.arm]), ": ", name(f"{arm_findings.within_run(arm.within_run)}.")),
            data_arm=arm.arm,
        )
        for arm in arms
        if arm.within_run is not None
    ]
    return tag("section", tag("h4", "Within runs"), tag("ul", *items)) if items else None


def _steps(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup | None:
    """The steps away from float32; folded, as the picture of the front comes first."""
    if not verdict.steps:
        return None
    attributes = [{"data_arm": one.after} for one in verdict.steps]
    table = dtype_step_table(verdict.steps)
    return details(dtype_steps.HEADING, html_table(table, styles, caption=dtype_steps.HEADING, attributes=attributes))


def _ranks(workload: WorkloadComparison, styles: Mapping[str, ArmStyle]) -> Markup | None:
    """The ranks of each arm, with what matters of them before the table."""
    named = arms_with_ranks(workload)
    if not named:
        return None
    lines = [
        tag("li", join(arm_name(arm, styles[arm]), ": ", name(f"{line}.")), data_arm=arm)
        for arm, line in lines_of_ranks(workload)
    ]
    table = ranks_table(named, categories=True)
    attributes = [{"data_arm": row[0]} for row in table.rows]
    shown = html_table(table, styles, caption=ranks.HEADING, attributes=attributes)
    return details(ranks.HEADING, tag("ul", *lines), shown)


def _all_figures(arms: Sequence[ArmComparison], styles: Mapping[str, ArmStyle]) -> Markup:
    columns = columns_for(arms)
    rows = [
        [arm_name(arm.arm, styles[arm.arm]) if column is ARM else _cell(column.render(arm)) for column in columns]
        for arm in arms
    ]
    return grid(
        tuple(column.header for column in columns),
        tuple(column.numeric for column in columns),
        rows,
        caption="Each arm",
        attributes=[{"data_arm": arm.arm} for arm in arms],
    )


def _cell(cell: Cell) -> Markup:
    return join(tag("span", cell.value), tag("small", cell.detail) if cell.detail else None)


def _notes(arms: Sequence[ArmComparison]) -> Markup | None:
    notes = [
        tag("li", join(name(arm.arm), ": ", name(f"{explaining.arm_note(note)}.")))
        for arm in arms
        for note in arm.notes
    ]
    return tag("ul", *notes) if notes else None


def overview(workloads: Sequence[WorkloadPanels], keys: Sequence[str]) -> Markup | None:
    """The verdicts of several workloads below each other; nothing for a single one."""
    if len(workloads) < 2:
        return None
    arms = list(dict.fromkeys(arm.arm for one in workloads for arm in one.data.workload.verdict.arms))
    rows = [_overview_row(one, arms) for one in workloads]
    return grid(
        ("workload", "train in", *arms),
        (False,) * (2 + len(arms)),
        rows,
        caption="All workloads: speed, peak memory and parity of each arm",
        class_="overview",
        attributes=[{"data_facts": facts_attribute(one.data.workload.facts, keys)} for one in workloads],
    )


def _overview_row(one: WorkloadPanels, arms: Sequence[str]) -> list[Markup]:
    workload = one.data.workload
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
        return name("no pair" if list(figures.statuses) == ["completed"] else arm_findings.statuses(figures.statuses))
    parts = [tag("span", f"{figure} ", word(told)) for figure, told in shown if told != "not measured"]
    return tag("span", *parts, class_="in-short")
