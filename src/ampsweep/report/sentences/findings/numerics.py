"""The sentences of the complaint `numerics`: errors larger than inputs and dtype explain."""

from collections.abc import Callable
from typing import Final

from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import number


def _unexplained(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    told = (
        f"{_where(finding)} has an error of {_pct(facts['error'])} in {facts['dtype']}, where its inputs and the dtype"
    )
    headline = f"{told} explain {_pct(facts['explained_error'])}"
    evidence = [
        f"the relative error of the {facts['phase']} pass's values at step {facts['step']}, against float32 with the "
        "same weights and batch; with every result rounded to the dtype as the training rounds it, float32 has no more "
        "than what is explained"
    ]
    if facts["is_in_both"] is False:
        evidence.append("float32 does not make this call at all: the code takes another way in half precision")
    return _with_proof(finding, headline, evidence)


def _no_digits(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline = f"no digit of what {_where(finding)} returns is right in {facts['dtype']}"
    if not isinstance(facts["error"], float | int):
        finite = f"inf or NaN is in it at step {facts['step']}, where float32 has finite numbers"
        return _with_proof(finding, headline, [finite])
    evidence = [
        f"its relative error at step {facts['step']} is {_pct(facts['error'])}; float32's own rounding leaves "
        f"{_pct(facts['float32_error'])} in it",
        "each operator is as exact as the dtype allows: the digits went when close numbers were subtracted, or when a "
        "large number that is only known to its last digit went through a function of small differences",
    ]
    return _with_proof(finding, headline, evidence)


SENTENCES: Final[dict[str, Callable[[DoctorFinding], Told]]] = {
    "unexplained_error": _unexplained,
    "no_digits_left": _no_digits,
}


def _with_proof(finding: DoctorFinding, headline: str, evidence: list[str]) -> Told:
    change = "compute it in float32"
    proof = finding.proof
    if not proof:
        return Told(headline=headline, evidence=evidence, change=change)
    if proof.get("raised") is not None:
        tried = f"tried: the step then ends with {proof['raised']}"
    elif proof["mends"]:
        tried = f"tried: its error is {_pct(proof['error'])} then"
    elif proof["error"] is None:
        tried = "tried: the step then does not make this call, so its error was not found"
    else:
        tried = f"tried: it does not help alone, its error is still {_pct(proof['error'])}"
    return Told(headline=headline, evidence=evidence, change=change, proof=tried)


def _where(finding: DoctorFinding) -> str:
    where = f"{finding.operator}"
    if finding.modules:
        where += f" of {finding.modules[0]}" if finding.modules[0] else " of the model itself"
    return where if finding.place is None else f"{where} ({finding.place})"


def _pct(error: object) -> str:
    """A relative error in percent; one that is not finite as it is written in a diagnosis."""
    return f"{number(100 * error)} %" if isinstance(error, float | int) else f"{error}"
