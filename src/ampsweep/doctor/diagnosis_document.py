"""A diagnosis as a document."""

import math
import shlex
from collections import defaultdict
from functools import partial
from typing import Any, Final

from ampsweep.config.schema import COMPLAINTS
from ampsweep.doctor.diagnosis import Diagnosis, DoctorFinding, fact_text, without_unit
from ampsweep.records.numerics import RunNumerics
from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section, items_of, section_of
from ampsweep.report.figure import Figure, axis, scatter
from ampsweep.report.numerics_shown import numerics_blocks
from ampsweep.report.palette import MODE_COLOURS, OTHER_COLOUR, arm_colour, arm_styles
from ampsweep.report.tables import Tone, text_table
from ampsweep.text import as_sentence, duration, listed, plural

_NAMES: Final = {complaint: complaint.capitalize() for complaint in COMPLAINTS} | {"types": "Type mismatch"}
_TRIED: Final[dict[bool, Tone]] = {True: "good", False: "bad"}
_ENDS: Final = ((True, "not examined to the end"), (False, "not examined"))
_MOST_MODULES: Final = 6
LOSSES: Final = "loss/steps"  # a point per step: `step`, the loss of the training (`own`) and in float32 (`baseline`)
_BASELINE: Final = "fp32"
_line: Final = partial(scatter, line=2, size=5)


def diagnosis_document(diagnosis: Diagnosis, numerics: RunNumerics | None) -> Document:
    """The findings, complaints that were not examined and all figures, with the magnitudes if known."""
    findings = [_finding(number, finding) for number, finding in enumerate(diagnosis.findings, start=1)]
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in diagnosis.unexamined:
        reasons[f"not examined{' to the end' * each.is_begun}: {each.reason}"].append(_NAMES[each.complaint])
    unexamined = (
        Item(as_sentence(f"{listed(names)} {'was' if len(names) == 1 else 'were'} {reason}"))
        for reason, names in reasons.items()
    )
    shown = () if numerics is None else numerics_blocks(numerics, _faults(diagnosis))
    headroom = [block for block in shown if isinstance(block, Items)]
    maps = section_of("Magnitudes", "", [block for block in shown if block not in headroom], on_screen=False)
    summary = Prose(as_sentence(_summary(diagnosis)), "headline")
    sections = [
        Section(title="Findings", key="findings", blocks=(*findings, summary)),
        section_of("Not examined", "unexamined", items_of(unexamined)),
        section_of("Headroom in low precision", "numerics", [*headroom, *([maps] if maps else [])]),
        section_of("Figures", "curves", filter(None, [_losses(diagnosis)]), on_screen=False),
        section_of("What was measured", "facts", _facts(diagnosis), on_screen=False),
    ]
    return Document(
        title=f"Diagnosis: {diagnosis.arm}, {diagnosis.model} on {diagnosis.data}, {diagnosis.device_name}",
        subtitle="" if diagnosis.run is None else f"run {diagnosis.run}",
        sections=tuple(section for section in sections if section is not None),
        arms=arm_styles([diagnosis.arm]),
        data=diagnosis.as_json(),
    )


def _finding(number: int, finding: DoctorFinding) -> Section:
    modules = listed((module or "the model" for module in finding.modules), _MOST_MODULES)
    module_label = "module" if len(finding.modules) == 1 else "modules"
    places = ((module_label, modules), ("operator", finding.operator), ("at", finding.place))
    seen = [Item(place, label) for label, place in places if place]
    seen += [Item(as_sentence(line), "seen") for line in (*finding.evidence, *finding.also)]
    blocks: list[Block] = [*items_of(seen)]
    if finding.advice:
        blocks.append(Prose(as_sentence(finding.advice)))
    overrides = " ".join(map(shlex.quote, finding.change.overrides))
    blocks += [Code(code) for code in (overrides, finding.change.code) if code]
    if (proof := finding.proof) is not None:
        blocks.append(Items((Item(as_sentence(proof.sentence), "tried", tone=_TRIED[proof.mends]),)))
    badge = _NAMES[finding.complaint] if finding.cost_pct is None else finding.price
    title = f"{number}. {as_sentence(finding.sentence)}"
    return Section(title=title, kind="card", badge=(badge, "bad"), blocks=tuple(blocks))


def _summary(diagnosis: Diagnosis) -> str:
    found = plural(len(diagnosis.findings), "finding") if diagnosis.findings else "nothing found"
    by_end = {end: [of.complaint for of in diagnosis.unexamined if of.is_begun == begun] for begun, end in _ENDS}
    left = "".join(f", {listed(complaints)} {end}" for end, complaints in by_end.items() if complaints)
    steps = f", {plural(diagnosis.steps, 'step')} replayed at most" if diagnosis.steps else ""
    return f"{found}{left}{steps}, {duration(diagnosis.seconds)}"


def _faults(diagnosis: Diagnosis) -> dict[str, int]:
    """The formats in which values or digits are lost, with the number of the finding."""
    last_first = reversed([*enumerate(diagnosis.findings, start=1)])
    known = ((of.facts.get("dtype"), number) for number, of in last_first if of.complaint in ("loss", "numerics"))
    return {dtype: number for dtype, number in known if dtype is not None}


def _facts(diagnosis: Diagnosis) -> list[Section]:
    rows = []
    for key, value in diagnosis.facts.items():
        is_plain = all(isinstance(item, str) for item in value) if isinstance(value, list) else True
        if is_plain and not isinstance(value, dict):
            complaint, _, name = key.partition("/")
            rows.append((complaint, without_unit(name), fact_text(name, value)))
    table = text_table("facts", ("complaint", "figure", "value"), rows)
    return [Section(title="Every figure", blocks=(table,), folded=True)] if rows else []


def _losses(diagnosis: Diagnosis) -> Figure | None:
    points: Any = diagnosis.facts.get(LOSSES)
    if not points:
        return None
    steps = [point["step"] for point in points]
    own, baseline = ([_finite(point[key]) for point in points] for key in ("own", "baseline"))
    known = [value for value in (*own, *baseline) if value is not None]
    remarks = [
        f"The loss of {arm} is {point[key]} from step {point['step']} on."
        for arm, key in ((diagnosis.arm, "own"), (_BASELINE, "baseline"))
        for point in [point for point in points if not math.isfinite(point[key])][:1]
    ]
    return Figure(
        key="losses",
        title="Loss",
        question="Does it learn as float32 does?",
        traces=[
            _line(_BASELINE, steps, baseline, MODE_COLOURS[_BASELINE], dash="dash", symbol="circle"),
            _line(diagnosis.arm, steps, own, arm_colour(diagnosis.arm) or OTHER_COLOUR, symbol="circle"),
        ],
        x=axis("step"),
        y=axis("loss", log=bool(known) and min(known) > 0 and max(known) > 10 * min(known)),
        remarks=tuple(remarks),
        legend=True,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
