"""A diagnosis as a Markdown document."""

import re
from typing import Final

from ampsweep.record.diagnosis import Diagnosis, Finding
from ampsweep.record.typed import typed
from ampsweep.redaction import hidden
from ampsweep.report.markdown import plain
from ampsweep.report.sentences.diagnosis import (
    COMPLAINT_NAMES,
    NOTHING_FOUND,
    code_of,
    diagnosis_heading,
    not_examined,
    priced,
    summary,
    where,
)
from ampsweep.report.sentences.findings import told

DIAGNOSIS_MARKDOWN_NAME: Final = "diagnosis.md"


def diagnosis_markdown(diagnosis: Diagnosis) -> str:
    """The document, without secrets: each finding with its evidence, change and proof, and what was not examined."""
    of: Diagnosis = typed(Diagnosis)(hidden(diagnosis.as_json()))
    lines = [f"# Diagnosis: {plain(diagnosis_heading(of))}", "", plain(f"{summary(of)}."), ""]
    if not of.findings:
        lines += [f"**{NOTHING_FOUND}.**", ""]
    for number, finding in enumerate(of.findings, start=1):
        lines += _finding(number, finding)
    if of.unexamined:
        lines += ["## Not examined", "", *(f"- {plain(not_examined(one))}." for one in of.unexamined), ""]
    return "\n".join(lines).rstrip() + "\n"


def _finding(number: int, of: Finding) -> list[str]:
    said = told(of)
    about = [COMPLAINT_NAMES[of.complaint], priced(of), *(f"{kind} {place}" for kind, place in where(of))]
    lines = [f"## {number}. {plain(said.headline)}", "", plain(", ".join(one for one in about if one)), ""]
    if said.evidence:
        lines += [*(f"- {plain(line)}" for line in said.evidence), ""]
    if said.change:
        lines += [f"{plain(said.change)}:" if code_of(of) else f"{plain(said.change)}.", ""]
    for code in code_of(of):
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
        lines += [fence, code, fence, ""]
    if said.proof:
        lines += [f"Tried: {plain(said.proof)}.", ""]
    return lines
