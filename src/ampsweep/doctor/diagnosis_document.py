"""A diagnosis as a document."""

import math
import shlex
from typing import Any, Final

from ampsweep.analysis.headroom import layer_text
from ampsweep.config.schema import Complaint
from ampsweep.doctor.diagnosis import Diagnosis, DoctorFinding, fact_text, without_unit
from ampsweep.doctor.loss.findings import OfOperator
from ampsweep.record.numerics import RunNumerics
from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section, items_of, section_of
from ampsweep.report.figure import Figure, axis, scatter
from ampsweep.report.numerics_shown import numerics_blocks
from ampsweep.report.palette import MODE_COLOURS, OTHER_COLOUR, arm_colour, arm_styles
from ampsweep.report.tables import Tone, text_table
from ampsweep.text import as_sentence, duration, listed, percent, plural

_NAMES: Final[dict[Complaint, str]] = {
    "types": "Type mismatch",
    "loss": "Loss",
    "numerics": "Numerics",
    "memory": "Memory",
    "speed": "Speed",
}
_PRICED: Final[dict[Complaint, str]] = {"memory": "of the peak memory", "speed": "of the step's time"}
_TRIED: Final[dict[bool, Tone]] = {True: "good", False: "bad"}
"""The tone of a proof, by whether the change has helped."""
_MOST_MODULES: Final = 6
ERROR_GROWTH: Final = "numerics/error_growth"
"""The fact with a point for each operator: `module`, `operator`, the relative `error` of what it returns against
float32, and `explained`, what the dtype and the errors of its inputs explain of it."""
LOSSES: Final = "loss/steps"
"""The fact with a point for each step: `step`, the loss of the training (`own`) and that in float32 (`baseline`)."""
_BASELINE: Final = "fp32"


def diagnosis_document(of: Diagnosis, numerics: RunNumerics | None) -> Document:
    """The findings in their order, what was not examined, and every figure that was taken.

    Args:
        numerics: the magnitudes of the training, for the room that it has in each format; None: they are not known.
    """
    findings = [_finding(number, one) for number, one in enumerate(of.findings, start=1)]
    unexamined = (Item(as_sentence(f"{_NAMES[one.complaint]} was not examined: {one.reason}")) for one in of.unexamined)
    shown = () if numerics is None else numerics_blocks(numerics, _faults(of))
    headroom = [one for one in shown if isinstance(one, Items)]
    maps = section_of("Magnitudes", "", [one for one in shown if one not in headroom], on_screen=False)
    sections = [
        Section(title="Findings", key="findings", blocks=(*findings, Prose(as_sentence(_summary(of)), "headline"))),
        section_of("Not examined", "unexamined", items_of(unexamined)),
        section_of("Headroom in low precision", "numerics", [*headroom, *([maps] if maps else [])]),
        section_of("Figures", "curves", [one for one in (_losses(of), _error_growth(of)) if one], on_screen=False),
        section_of("What was measured", "facts", _facts(of), on_screen=False),
    ]
    return Document(
        title=f"Diagnosis: {of.arm}, {of.model} on {of.data}, {of.device_name}",
        subtitle="" if of.run is None else f"run {of.run}",
        sections=tuple(one for one in sections if one is not None),
        arms=arm_styles([of.arm]),
        data=of.as_json(),
    )


def _finding(number: int, of: DoctorFinding) -> Section:
    modules = listed((one or "the model" for one in of.modules), _MOST_MODULES)
    places = (("module" if len(of.modules) == 1 else "modules", modules), ("operator", of.operator), ("at", of.place))
    seen = [Item(place, kind) for kind, place in places if place]
    seen += [Item(as_sentence(line), "seen") for line in of.evidence]
    blocks: list[Block] = [*items_of(seen)]
    if of.advice:
        blocks.append(Prose(as_sentence(of.advice)))
    overrides = " ".join(shlex.quote(one) for one in of.change.overrides)
    blocks += [Code(one) for one in (overrides, of.change.code) if one]
    if of.proof is not None:
        blocks.append(Items((Item(as_sentence(of.proof.sentence), "tried", tone=_TRIED[of.proof.mends]),)))
    badge = _NAMES[of.complaint] if of.cost_pct is None else f"{percent(of.cost_pct)} {_PRICED[of.complaint]}"
    title = f"{number}. {as_sentence(of.sentence)}"
    return Section(title=title, kind="card", badge=(badge, "bad"), blocks=tuple(blocks))


def _summary(of: Diagnosis) -> str:
    """One line on what was found, in how much time."""
    found = plural(len(of.findings), "finding") if of.findings else "nothing found"
    left = f", {listed(dict.fromkeys(one.complaint for one in of.unexamined))} not examined" if of.unexamined else ""
    steps = f", {plural(of.steps, 'step')} replayed at most" if of.steps else ""
    return f"{found}{left}{steps}, {duration(of.seconds)}"


def _faults(of: Diagnosis) -> dict[str, int]:
    """The formats in which an operator makes inf or NaN, with the number of the finding."""
    found: dict[str, int] = {}
    for number, one in enumerate(of.findings, start=1):
        if isinstance(one, OfOperator) and one.origin is not None and one.origin.phase != "update":
            found.setdefault(one.signs.dtype, number)
    return found


def _facts(of: Diagnosis) -> list[Section]:
    """All figures that are one value, as a table."""
    single = {key: value for key, value in of.facts.items() if not _has_parts(value)}
    if not single:
        return []
    named = [(*key.partition("/")[::2], value) for key, value in single.items()]
    rows = [(complaint, without_unit(name), fact_text(name, value)) for complaint, name, value in named]
    table = text_table("facts", ("complaint", "figure", "value"), rows)
    return [Section(title="Every figure", blocks=(table,), folded=True)]


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(one, str) for one in value))


def _error_growth(of: Diagnosis) -> Figure | None:
    """The error of each operator's result through the net; None where it was not measured."""
    points: Any = of.facts.get(ERROR_GROWTH)
    if not points:
        return None
    texts = [f"{layer_text(one['module'])}: {one['operator']}" for one in points]
    infinite = next((text for text, one in zip(texts, points, strict=True) if not math.isfinite(one["error"])), None)
    remark = f"From {infinite} on there are values that are not finite, which are not drawn."
    explained, own = ([_finite(one[key]) or None for one in points] for key in ("explained", "error"))
    places = [*range(1, len(points) + 1)]
    return Figure(
        key="error-growth",
        title="Growth of the error through the net",
        question="Where does the error become larger than the dtype explains?",
        traces=[
            _line(
                "explained by dtype and inputs", places, explained, MODE_COLOURS[_BASELINE], dash="dash", hover=texts
            ),
            _line(of.arm, places, own, _colour(of), symbol="circle", hover=texts),
        ],
        x=axis("operator of the step"),
        y=axis("relative error", log=True, power=True),
        remarks=(remark,) if infinite is not None else (),
        legend=True,
    )


def _losses(of: Diagnosis) -> Figure | None:
    """The loss of each step beside that in float32; None where it was not measured."""
    points: Any = of.facts.get(LOSSES)
    if not points:
        return None
    steps = [one["step"] for one in points]
    own, baseline = ([_finite(one[key]) for one in points] for key in ("own", "baseline"))
    known = [value for value in (*own, *baseline) if value is not None]
    remarks = [
        f"The loss of {arm} is {one[key]} from step {one['step']} on."
        for arm, key in ((of.arm, "own"), (_BASELINE, "baseline"))
        if (one := next((one for one in points if not math.isfinite(one[key])), None)) is not None
    ]
    return Figure(
        key="losses",
        title="Loss",
        question="Does it learn as float32 does?",
        traces=[
            _line(_BASELINE, steps, baseline, MODE_COLOURS[_BASELINE], dash="dash", symbol="circle"),
            _line(of.arm, steps, own, _colour(of), symbol="circle"),
        ],
        x=axis("step"),
        y=axis("loss", log=bool(known) and min(known) > 0 and max(known) > 10 * min(known)),
        remarks=tuple(remarks),
        legend=True,
    )


def _line(name: str, x: list[int], y: list[float | None], colour: str, **style: Any) -> dict[str, Any]:
    return scatter(name, x, y, colour, line=2, size=5, **style)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _colour(of: Diagnosis) -> str:
    return arm_colour(of.arm) or OTHER_COLOUR
