"""A diagnosis on the terminal, and as JSON."""

import json
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampsweep.analysis.headroom import headroom_of
from ampsweep.record.diagnosis import Diagnosis, Finding
from ampsweep.record.numerics import RunNumerics
from ampsweep.redaction import hidden
from ampsweep.report.console import PLAIN_WIDTH, at_least
from ampsweep.report.sentences.diagnosis import (
    code_of,
    diagnosis_heading,
    mends,
    not_examined,
    price,
    summary,
    where,
)
from ampsweep.report.sentences.findings import told
from ampsweep.report.sentences.headroom import headroom_lines

_INDENT: Final = 4
_LABEL_WIDTH: Final = 8
_MARKS: Final = {True: ("✓ ", "green"), False: ("✗ ", "red"), None: ("", "")}
"""Sign and style of a proof, by whether the change has helped."""


def print_diagnosis(diagnosis: Diagnosis, console: Console, numerics: RunNumerics | None = None) -> None:
    """Print the findings in their order, each with its price, place, evidence, change and proof.

    Args:
        numerics: the magnitudes of the training, for a line on each format that has room for them.
    """
    with at_least(console, PLAIN_WIDTH):
        console.print(Text(f"\n{diagnosis_heading(diagnosis)}", style="bold"))
        for number, finding in enumerate(diagnosis.findings, start=1):
            _print(number, finding, console)
        if diagnosis.unexamined:
            console.print()
        for one in diagnosis.unexamined:
            console.print(Text(not_examined(one), style="yellow"))
        for number, line in enumerate(() if numerics is None else headroom_lines(headroom_of(numerics), diagnosis)):
            console.print(Text(("" if number else "\n") + line))
        console.print(Text(f"\n{summary(diagnosis)}", style="bold" if diagnosis.findings else "bold green"))


def as_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object without secrets, whose `findings` have their sentences, too."""
    content = diagnosis.as_json()
    for finding, entry in zip(diagnosis.findings, content["findings"], strict=True):
        said = told(finding)
        entry["headline"] = said.headline
        entry["sentences"] = {"evidence": said.evidence, "change": said.change, "proof": said.proof}
    return json.dumps(hidden(content), indent=1, allow_nan=False)


def _print(number: int, finding: Finding, console: Console) -> None:
    """Print a finding: its headline and price, then a line for each thing there is to tell, labelled."""
    said = told(finding)
    head = Table.grid(padding=(0, 1, 0, 0), expand=True)
    head.add_column(width=_INDENT - 1)
    head.add_column(ratio=1, overflow="fold")
    head.add_column(justify="right", no_wrap=True)
    head.add_row(f"{number:>2}.", Text(said.headline, style="bold"), Text(price(finding) or "", style="yellow"))
    console.print("", head, sep="\n")
    places = [(kind, Text(place)) for kind, place in where(finding)]
    seen = [("seen", Text(line, style="dim")) for line in said.evidence]
    codes = code_of(finding)
    _print_labelled([*places, *seen, *([("change", Text(said.change))] if said.change else [])], console)
    for place, code in enumerate(codes):  # never folded, so that it can be copied
        label = "" if said.change or place else "change"
        console.print(
            Text.assemble(" " * _INDENT, (f"{label:<{_LABEL_WIDTH}} ", "dim"), (code, "bold cyan")), soft_wrap=True
        )
    if said.proof:
        sign, style = _MARKS[mends(finding)]
        _print_labelled([("tried", Text(sign + said.proof, style=style))], console)


def _print_labelled(lines: Sequence[tuple[str, Text]], console: Console) -> None:
    if not lines:
        return
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=_LABEL_WIDTH, style="dim")
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, text)
    console.print(Padding(table, (0, 0, 0, _INDENT)))
