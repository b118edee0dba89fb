"""The verdict card of a workload: what to train in, then speed, memory and parity of each arm, then why."""

from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.quantities import estimate, num_bytes, number, percent
from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.verdict import ArmVerdict, Verdict
from ampsweep.report.columns import ARM, Cell, columns_for
from ampsweep.report.dashboard import WorkloadPanels
from ampsweep.report.kinds.pairs import gap
from ampsweep.report.markup import Markup, join, name, tag
from ampsweep.report.page.filters import facts_attribute
from ampsweep.report.page.swatch import arm_name
from ampsweep.report.page.tables import details, grid
from ampsweep.report.palette import ArmStyle

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
"""Sign and tone of the words that are an answer; the others leave the question open."""


def verdict_card(one: WorkloadPanels, styles: Mapping[str, ArmStyle], keys: Sequence[str]) -> Markup:
    """The answer first, then what it stands on."""
    workload, verdict = one.subject.workload, one.subject.workload.verdict
    figures = {arm.arm: arm for arm in workload.arms}
    return tag(
        "article",
        tag("h3", name(workload.title)),
        _answer(verdict, styles),
        *(_arm(arm, figures[arm.arm], verdict, styles) for arm in verdict.arms),
        tag("div", _to_decide(verdict, styles), _reasons(verdict, styles), class_="grounds-lists"),
        details(
            "All figures, in words and as a table",
            tag("p", name(workload.conclusion.sentence)),
            _all_figures(workload.arms, styles),
            _notes(workload.arms),
        ),
        class_="verdict",
        data_facts=facts_attribute(workload.facts, keys),
    )


def overview(workloads: Sequence[WorkloadPanels], styles: Mapping[str, ArmStyle], keys: Sequence[str]) -> Markup | None:
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
    shown = [(_speed(figures)[0], judged.speed), (_memory(figures)[0], judged.memory), ("", judged.parity)]
    if all(word == "not measured" for _, word in shown):
        return name("no pair" if figures.status == "completed" else figures.status)
    parts = [tag("span", f"{figure} ", _word(word)) for figure, word in shown if word != "not measured"]
    return tag("span", *parts, class_="in-short")


def _answer(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup:
    """The recommendation: its first words large, its grounds below."""
    recommendation = verdict.recommendation
    headline, colon, grounds = recommendation.sentence.partition(": ")
    arm = recommendation.arm
    return tag(
        "div",
        tag("p", name(headline + colon.strip()), class_="headline"),
        tag("p", name(grounds), class_="grounds") if grounds else None,
        class_=f"answer {'decided' if arm else 'undecided'}",
        style=f"--arm:{styles[arm].colour}" if arm is not None else None,
    )


def _arm(arm: ArmVerdict, figures: ArmComparison, verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup:
    judged = arm.judgements
    standing = next((one for one in verdict.recommendation.standings if one.arm == arm.arm), None)
    parity = arm.parities[0] if arm.parities else None
    tiles = [
        _tile("Speed", *_speed(figures), judged.speed),
        _tile("Peak memory", *_memory(figures), judged.memory),
        _tile("Parity", *_parity(parity), judged.parity),
    ]
    is_measured = any(one is not None for one in (figures.speedup, figures.memory_saved_bytes, parity))
    is_explained = standing is not None and standing.standing in ("refused", "undecided")
    return tag(
        "section",
        tag(
            "h4",
            arm_name(arm.arm, styles[arm.arm]),
            tag("span", standing.standing, class_=f"badge {standing.standing}") if standing else None,
        ),
        tag("dl", *tiles, class_="tiles") if is_measured else None,
        tag("p", _sentence(standing.reason, styles), class_="why") if standing and is_explained else None,
        tag("p", _sentence(arm.time_to_loss.text, styles), class_="why") if arm.time_to_loss else None,
        class_="arm-verdict",
        data_arm=arm.arm,
        style=f"--arm:{styles[arm.arm].colour}",
    )


def _tile(title: str, figure: str, uncertainty: str, word: str) -> Markup:
    return tag(
        "div",
        tag("dt", title),
        tag(
            "dd",
            tag("span", figure, class_="figure"),
            _word(word),
            tag("span", uncertainty, class_="uncertainty") if uncertainty else None,
        ),
        class_="tile",
    )


def _word(word: str) -> Markup:
    sign, tone = _TONES.get(word, _OPEN)
    return tag("span", tag("span", sign, aria_hidden="true"), f" {word}", class_=f"word {tone}")


def _speed(arm: ArmComparison) -> tuple[str, str]:
    if arm.speedup is None:
        return "-", ""
    value, ends = estimate(arm.speedup)
    return f"{value}x", _uncertainty(arm.speedup, "" if ends is None else f"[{ends[0]}, {ends[1]}]x")


def _memory(arm: ArmComparison) -> tuple[str, str]:
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


def _parity(parity: Parity | None) -> tuple[str, str]:
    if parity is None:
        return "-", ""
    mean = gap(parity)
    value, ends = estimate(mean, digits=2, sign=True)
    interval = "" if ends is None else f"[{ends[0]}, {ends[1]}], "
    return value, _uncertainty(mean, f"{interval}margin ±{number(parity.margin, 2)} in {parity.name}")


def _to_decide(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup | None:
    steps = [tag("li", _sentence(step, styles)) for step in verdict.recommendation.to_decide]
    return tag("section", tag("h4", "What would decide it"), tag("ul", *steps)) if steps else None


def _reasons(verdict: Verdict, styles: Mapping[str, ArmStyle]) -> Markup | None:
    items = [
        tag(
            "li",
            join(arm_name(one.arm, styles[one.arm]), ": ") if one.arm is not None else None,
            _sentence(one.text, styles) if one.arm is None else name(f"{one.text}."),
        )
        for one in verdict.reasons
    ]
    return tag("section", tag("h4", "Why"), tag("ul", *items)) if items else None


def _sentence(clause: str, styles: Mapping[str, ArmStyle]) -> Markup:
    """A clause as a sentence of its own; the name of an arm stays as it is."""
    begins_with_arm = any(clause.startswith(arm) for arm in styles)
    return name(f"{clause if begins_with_arm else clause[:1].upper() + clause[1:]}.")


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
    notes = [tag("li", join(name(arm.arm), ": ", name(f"{note}."))) for arm in arms for note in arm.notes]
    return tag("ul", *notes) if notes else None
