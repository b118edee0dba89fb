"""The sentences of the complaint `types`: operators that do not take the dtypes which they get."""

from collections.abc import Callable
from typing import Any, Final

from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import number


def _mixed(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline = (
        f"{_call(finding)} gets {facts['first_argument']} in {facts['first_dtype']} and {facts['second_argument']} in "
        f"{facts['second_dtype']}, which it does not take together"
    )
    return _told(finding, headline, f"cast {_cast(facts)} to {facts['cast_to']}")


def _not_implemented(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline = f"{_call(finding)} takes no {facts['first_dtype']} on this device"
    return _told(finding, headline, f"let it compute in {facts['cast_to']}: cast {_cast(facts)}")


def _too_large(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline = f"{_call(finding)} is given {facts['number']:g}, which {facts['first_dtype']} cannot hold"
    return _told(finding, headline, "give it the limit of the tensor's own dtype, which means the same to a softmax")


def _stops(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    where = f" in {_call(finding)}" if finding.operator or finding.modules or finding.place else ""
    headline = f"the {facts['stage']} stops{where} with an error that float32 does not raise: {facts['error']}"
    evidence = [f"it stops in step {facts['step']}"] if facts["stage"] == "training" else []
    if finding.operator is not None:
        evidence.append("no cast of what the failing call gets lets it go on: it is more than its dtypes that is wrong")
    change = "train in another precision, in which it runs as it is" if finding.change.overrides else None
    return Told(headline=headline, evidence=evidence, change=change)


SENTENCES: Final[dict[str, Callable[[DoctorFinding], Told]]] = {
    "mixed_dtypes": _mixed,
    "not_implemented": _not_implemented,
    "number_too_large": _too_large,
    "stops_with_error": _stops,
}


def _told(finding: DoctorFinding, headline: str, cast: str) -> Told:
    facts = finding.evidence
    phase = {"forward": "the forward pass", "backward": "the backward pass", "update": "the update"}[
        str(facts["phase"])
    ]
    step = f"{phase} of step {facts['step']}" if facts["stage"] == "training" else "the evaluation after a step"
    evidence = [f"{step} stops with {facts['error']}"]
    for which in ("first", "second"):
        if f"{which}_argument" in facts:
            evidence.append(_operand(facts, which))
    if int(str(facts["num_modules"])) > 1:
        evidence.append(f"the same line does so in {facts['num_modules']} modules")
    if facts["runs_with"]:
        evidence.append(f"without a change of code it runs with {_joined(facts['runs_with'])}")
    overrides = finding.change.overrides
    change = cast if not overrides else "train with autocast or keep the module in float32"
    if overrides and overrides[0].startswith("precision="):
        change = "let autocast cast, with parameters in float32"
    elif overrides:
        change = "keep the module in float32"
    return Told(headline=headline, evidence=evidence, change=change, proof=_proof(finding))


def _operand(facts: dict[str, object], which: str) -> str:
    own = {key.removeprefix(f"{which}_"): value for key, value in facts.items() if key.startswith(f"{which}_")}
    told = f"{own['argument']} is {own['dtype']}: {_made(own, 'made')}"
    if "dtype_from_by" in own:
        told += f"; its dtype is that of {_source(own)}" if own["dtype_from_by"] in _HELD else f"; {_source(own)}"
    return told


_HELD: Final = ("parameter", "buffer", "attribute", "batch", "optimizer_state", "unknown")


def _source(own: dict[str, Any]) -> str:
    kind = own["dtype_from_by"]
    if kind in _HELD:
        return _held(kind, own.get("dtype_from_name"))
    where = _where(own, "dtype_from")
    match kind:
        case "constant":
            return f"its dtype is that of what {own['dtype_from_operator']} makes{where}"
        case "cast":
            return f"its dtype is that of a cast{where}"
        case "autocast":
            return f"its dtype is autocast's{where}"
    return f"its dtype is that of what {own['dtype_from_operator']} returns{where}"


def _made(own: dict[str, Any], prefix: str) -> str:
    kind = own[f"{prefix}_by"]
    if kind in _HELD:
        return f"it is {_held(kind, own.get(f'{prefix}_name'))}"
    where = _where(own, prefix)
    match kind:
        case "cast":
            return f"the code casts it{where}"
        case "autocast":
            return f"autocast casts it{where}"
    return f"{own[f'{prefix}_operator']} makes it{where}"


def _held(kind: str, name: str | None) -> str:
    match kind:
        case "attribute":
            return f"{name}, a tensor that is no buffer, so that no precision converts it"
        case "optimizer_state":
            return f"{name} in the optimizer's state"
        case "batch":
            return f"{name} of the data"
        case "unknown":
            return "a tensor that no operator of the training has made"
    return f"the {kind} {name}"


def _where(own: dict[str, Any], prefix: str) -> str:
    module, place = own.get(f"{prefix}_module"), own.get(f"{prefix}_place")
    inside = f" in {module}" if module else ""
    return inside + (f" ({place})" if place else "")


def _call(finding: DoctorFinding) -> str:
    module = finding.modules[0] if finding.modules else ""
    called = " in ".join(one for one in (finding.operator, module) if one) or "the code"
    return called + (f" ({finding.place})" if finding.place else "")


def _cast(facts: dict[str, object]) -> str:
    return _joined(facts["cast"])


def _joined(names: object) -> str:
    return " and ".join(str(one) for one in names) if isinstance(names, list) else str(names)


def _proof(finding: DoctorFinding) -> str:
    proof = finding.proof
    if not proof["mends"]:
        return f"with that the training goes on, to the next error: {proof['next_error']}"
    told = "with that the training and an evaluation go through"
    if isinstance(loss := proof.get("loss"), float) and isinstance(baseline := proof.get("baseline_loss"), float):
        told += f"; the loss of step {proof['step']} is {number(loss, 4)}, in float32 {number(baseline, 4)}"
    return told
