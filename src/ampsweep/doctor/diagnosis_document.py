"""A diagnosis as a document."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ampsweep.analysis.headroom import headroom_of
from ampsweep.record.diagnosis import Diagnosis, DoctorFinding
from ampsweep.record.numerics import RunNumerics
from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section
from ampsweep.report.figures.diagnosis_figures import error_growth, losses
from ampsweep.report.numerics_shown import headroom_lines, numerics_blocks
from ampsweep.report.palette import arm_styles
from ampsweep.report.sentences.diagnosis import (
    COMPLAINT_NAMES,
    code_of,
    diagnosis_heading,
    fact_lines,
    mends,
    not_examined,
    priced,
    summary,
    where,
)
from ampsweep.report.sentences.findings import told
from ampsweep.report.tables import Tone, text_table
from ampsweep.text import as_sentence

_TRIED: Final[dict[bool | None, Tone]] = {True: "good", False: "bad", None: "open"}
"""The tone of a proof, by whether the change has helped."""


def diagnosis_document(of: Diagnosis, numerics: RunNumerics | None) -> Document:
    """The findings in their order, what was not examined, and every figure that was taken.

    Args:
        numerics: the magnitudes of the training, for the room that it has in each format; None: they are not known.
    """
    findings = [_finding(number, one) for number, one in enumerate(of.findings, start=1)]
    sections = [
        Section(title="Findings", key="findings", blocks=(*findings, Prose(as_sentence(summary(of)), "headline"))),
        _section(
            "Not examined", "unexamined", [Items(tuple(map(_unexamined, of.unexamined)))] if of.unexamined else []
        ),
        _section("Headroom in low precision", "", _headroom(of, numerics)),
        _section("Figures", "curves", [one for one in (losses(of), error_growth(of)) if one], on_screen=False),
        _section("Magnitudes", "numerics", [] if numerics is None else numerics_blocks(numerics, of), on_screen=False),
        _section("What was measured", "facts", _facts(of), on_screen=False),
    ]
    return Document(
        title=f"Diagnosis: {diagnosis_heading(of)}",
        subtitle="" if of.run is None else f"run {of.run}",
        sections=tuple(one for one in sections if one is not None),
        arms=arm_styles([of.arm]),
        data=_data(of),
    )


def _section(title: str, key: str, blocks: Any, *, on_screen: bool = True) -> Section | None:
    found = tuple(blocks)
    return Section(title=title, key=key, blocks=found, on_screen=on_screen) if found else None


def _finding(number: int, of: DoctorFinding) -> Section:
    said = told(of)
    blocks: list[Block] = []
    places = [Item(place, kind) for kind, place in where(of)]
    evidence = [Item(as_sentence(line), "seen") for line in said.evidence]
    if places or evidence:
        blocks.append(Items((*places, *evidence)))
    if said.change:
        blocks.append(Prose(as_sentence(said.change)))
    blocks += map(Code, code_of(of))
    if said.proof:
        blocks.append(Items((Item(as_sentence(said.proof), "tried", tone=_TRIED[mends(of)]),)))
    badge = priced(of) or COMPLAINT_NAMES[of.complaint]
    return Section(
        title=f"{number}. {as_sentence(said.headline)}", kind="card", badge=(badge, "bad"), blocks=tuple(blocks)
    )


def _unexamined(one: Any) -> Item:
    return Item(as_sentence(not_examined(one)))


def _items(items: Iterable[Item]) -> list[Items]:
    found = tuple(items)
    return [Items(found)] if found else []


def _headroom(of: Diagnosis, numerics: RunNumerics | None) -> list[Items]:
    lines = [] if numerics is None else headroom_lines(headroom_of(numerics), of)
    return _items(Item(as_sentence(line)) for line in lines)


def _facts(of: Diagnosis) -> Iterator[Section]:
    rows = fact_lines(of.facts)
    if rows:
        table = text_table("facts", ("complaint", "figure", "value"), rows)
        yield Section(title="Every figure", blocks=(table,), folded=True)


def _data(of: Diagnosis) -> dict[str, Any]:
    """The diagnosis, whose findings have their sentences, too."""
    content = of.as_json()
    for finding, entry in zip(of.findings, content["findings"], strict=True):
        said = told(finding)
        entry["headline"] = said.headline
        entry["sentences"] = {"evidence": said.evidence, "change": said.change, "proof": said.proof}
    return content
