"""A diagnosis as one self-contained HTML file, which fetches nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ampsweep.record import write_atomically
from ampsweep.record.diagnosis import Diagnosis, Finding
from ampsweep.record.numerics import RunNumerics
from ampsweep.record.typed import typed
from ampsweep.redaction import hidden
from ampsweep.report.figures.diagnosis_figures import error_growth, losses
from ampsweep.report.numerics_shown import show_numerics
from ampsweep.report.page.markup import Markup, join, name, stated, tag
from ampsweep.report.page.numerics_cards import numerics_card
from ampsweep.report.page.panel_figures import Figures, figure_card
from ampsweep.report.page.shell import page_header, whole_page
from ampsweep.report.page.tables import details, html_table
from ampsweep.report.sentences.diagnosis import (
    COMPLAINT_NAMES,
    NOTHING_FOUND,
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
from ampsweep.report.table import Table

PAGE_NAME: Final = "diagnosis.html"
_MARKS: Final = {True: ("✓", "good"), False: ("✗", "bad"), None: ("?", "open")}
"""Sign and tone of a proof, by whether the change has helped."""


def write_page(diagnosis: Diagnosis, numerics: RunNumerics | None, path: Path) -> None:
    """Write the page of a diagnosis, without secrets and atomically.

    Args:
        numerics: the magnitudes of the training that was examined, for the heat maps; None: no maps.

    Raises:
        OSError: `path` cannot be written.
    """
    write_atomically(path, diagnosis_page(diagnosis, numerics))


def diagnosis_page(diagnosis: Diagnosis, numerics: RunNumerics | None) -> str:
    """The document."""
    shown: Diagnosis = typed(Diagnosis)(hidden(diagnosis.as_json()))
    figures = Figures()
    parts = [(key, title, part) for key, title, part in _parts(shown, numerics, figures) if part is not None]
    title = f"Diagnosis: {diagnosis_heading(shown)}"
    links = [(key, title) for key, title, _ in parts]
    header = page_header(join("Diagnosis of ", name(shown.arm)), summary(shown), links)
    about = [tag("p", name(diagnosis_heading(shown)), class_="counts")]
    if shown.run is not None:
        about.append(tag("p", "Run: ", name(shown.run), class_="counts"))
    sections = [tag("section", tag("h2", title), part, id=key) for key, title, part in parts]
    body = join(tag("header", header, tag("div", *about)), tag("main", *sections))
    return whole_page(title, body, figures)


def _parts(of: Diagnosis, numerics: RunNumerics | None, figures: Figures) -> Iterator[tuple[str, str, Markup | None]]:
    """Each part of the page: its id, its heading, and its content if it has any."""
    yield "findings", "Findings", _findings(of)
    yield "unexamined", "Not examined", _unexamined(of)
    yield "curves", "Figures", _figures(of, figures)
    if numerics is not None:
        yield "numerics", "Magnitudes", numerics_card(show_numerics(numerics, of), "n", figures)
    yield "facts", "What was measured", _facts(of)


def _findings(of: Diagnosis) -> Markup:
    if not of.findings:
        return tag("article", tag("p", f"{NOTHING_FOUND}.", class_="headline"), class_="verdict")
    return join(*(_finding(number, one) for number, one in enumerate(of.findings, start=1)))


def _finding(number: int, of: Finding) -> Markup:
    said = told(of)
    cost = priced(of)
    places = [tag("span", f"{kind} ", tag("code", name(place))) for kind, place in where(of)]
    evidence = [tag("li", stated(line)) for line in said.evidence]
    codes = [_code(f"code-{number}-{place}", text) for place, text in enumerate(code_of(of))]
    return tag(
        "article",
        tag(
            "p",
            tag("span", f"{number}", class_="finding-number"),
            tag("span", COMPLAINT_NAMES[of.complaint], class_="badge"),
            tag("span", cost, class_="badge refused") if cost else None,
            class_="finding-line",
        ),
        tag("h3", stated(said.headline)),
        tag("p", *places, class_="places") if places else None,
        tag("ul", *evidence) if evidence else None,
        tag("p", stated(said.change), class_="change") if said.change else None,
        *codes,
        _proof(of, said.proof),
        class_="verdict finding",
        id=f"finding-{number}",
    )


def _code(identifier: str, text: str) -> Markup:
    return tag(
        "div",
        tag("pre", tag("code", text, id=identifier)),
        tag("button", "Copy", type="button", data_copy=identifier),
        class_="code",
    )


def _proof(of: Finding, told_proof: str | None) -> Markup | None:
    if told_proof is None:
        return None
    sign, tone = _MARKS[mends(of)]
    mark = tag("span", sign, aria_hidden="true")
    return tag("p", tag("span", mark, " tried", class_=f"word {tone}"), " ", stated(told_proof), class_="proof")


def _unexamined(of: Diagnosis) -> Markup | None:
    items = [tag("li", stated(not_examined(one))) for one in of.unexamined]
    return tag("ul", *items) if items else None


def _figures(of: Diagnosis, figures: Figures) -> Markup | None:
    cards = []
    if (shown := losses(of)) is not None:
        question = "Does it learn as float32 does?"
        cards.append(figure_card(shown, figures, identifier="losses", title="Loss", question=question))
    if (shown := error_growth(of)) is not None:
        question = "Where does the error become larger than the dtype explains?"
        title = "Growth of the error through the net"
        cards.append(figure_card(shown, figures, identifier="error-growth", title=title, question=question))
    return tag("div", *cards, class_="panels") if cards else None


def _facts(of: Diagnosis) -> Markup | None:
    rows = tuple(fact_lines(of.facts))
    if not rows:
        return None
    table = Table(("complaint", "figure", "value"), (False, False, False), rows)
    return details("Every figure", html_table(table, {}, caption="Figures of the examinations"), open_=len(rows) < 40)
