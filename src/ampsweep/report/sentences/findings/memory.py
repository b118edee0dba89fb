"""The sentences of the complaint `memory`: what keeps a peak from shrinking."""

from collections.abc import Callable
from typing import Any, Final

from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import listed, num_bytes, percent, plural

_MOST_MODULES: Final = 4


def _cast(finding: DoctorFinding) -> Told:
    headline = f"{_where(finding)} casts to float32, and what follows stays there: {_wide(finding)}"
    return _told(finding, headline, "leave the cast out, or cast only what needs it")


def _autocast_off(finding: DoctorFinding) -> Told:
    if finding.change.overrides:
        headline = f"precision.fp32_modules keeps {_modules(finding)} in float32: {_wide(finding)}"
        return _told(finding, headline, "keep fewer modules in float32, if the loss allows it")
    headline = f"autocast is switched off in {_modules(finding)} ({finding.place}): {_wide(finding)}"
    return _told(finding, headline, "leave autocast on there")


def _promoted(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    named = f" {facts['partner_name']}" if facts["partner_name"] else ""
    partner = {"constant": "a constant", "operator": "a constant"}.get(
        facts["partner_by"], f"the {facts['partner_by']}"
    )
    headline = f"{_where(finding)} meets {partner}{named} in float32, and so does all that follows: {_wide(finding)}"
    return _told(finding, headline, "cast the result back to the dtype of the activations, or the constant to it")


def _policy(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline = f"autocast computes {facts['function']} in float32 in {_modules(finding)}: {_wide(finding)}"
    change = "switch autocast off around it, if its input fits into half precision"
    if facts["function"] in ("softmax", "_softmax"):
        change += "; of attention, let F.scaled_dot_product_attention compute all of it"
    return _told(finding, headline, change)


def _again(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    what = "the weight" if facts["source_by"] == "parameter" else "the same tensor"
    copies = (
        f"{plural(facts['num_copies'], 'copy').replace('copys', 'copies')} of {plural(facts['num_tensors'], 'tensor')}"
    )
    headline = f"autocast casts {what} again at each use in {_modules(finding)}: {copies} are alive at the peak"
    evidence = [f"all but the first copy of each take {num_bytes(facts['extra_bytes'])}"]
    if facts["cache_enabled"] and facts["source_by"] == "parameter":
        evidence.append("its cache takes parameters only: not their views, nor what is computed from them")
    change = "let autocast keep its copies" if finding.change.overrides else "cast it once, and use the copy"
    return Told(headline=headline, evidence=evidence, change=change, proof=_proof(finding))


def _grows(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    holder = f"{facts['attribute']} keeps" if facts["attribute"] else "something keeps"
    headline = f"memory grows by {num_bytes(facts['growth_bytes'])} a step: {holder} tensors of every step"
    evidence = []
    if facts["made_in"]:
        made = listed((_named(one) for one in facts["made_in"]), _MOST_MODULES)
        evidence.append(f"what is left of the step before was made in {made} ({finding.place})")
    return Told(
        headline=headline,
        evidence=evidence,
        change="keep numbers (.item()); a tensor keeps its storage, and with a graph all that backward would need",
        proof=_growth_proof(finding),
    )


def _kept(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    headline = f"{facts['attribute']} keeps {num_bytes(facts['kept_bytes'])} that the step itself needs no more"
    return Told(headline=headline, change="drop them once they are used", proof=_proof(finding))


def _loss(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    headline = (
        f"the loss takes {num_bytes(facts['loss_bytes'])} in {plural(facts['num_tensors'], 'large tensor')}: "
        f"{finding.operator} ({finding.place}) computes on {facts['shape']} values in {facts['dtype']}"
    )
    return _told(finding, headline, "take smaller micro-batches and add up their gradients: the same effective batch")


def _update(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    headline = (
        f"the peak is in the optimizer's step: {plural(facts['num_tensors'], 'temporary tensor')}, "
        f"{num_bytes(facts['update_bytes'])}, most of {finding.operator}"
    )
    return _told(finding, headline, "choose an implementation that needs no copies of all parameters")


def _data(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    headline = f"the data set is resident on the device: {num_bytes(facts['data_bytes'])}, which no precision shrinks"
    return Told(headline=headline, change="keep it in host memory and copy batches ahead")


def _state(finding: DoctorFinding) -> Told:
    facts: dict[str, Any] = finding.evidence
    kept = ", ".join(
        f"{name} {num_bytes(facts[f'{key}_bytes'])}"
        for key, name in (
            ("parameters", "parameters"),
            ("gradients", "gradients"),
            ("optimizer_state", "optimizer state"),
        )
    )
    headline = f"nearly all of the peak is what autocast leaves in float32: {kept}"
    if finding.kind == "copies_of_weights":
        copies = num_bytes(facts["autocast_weights_bytes"])
        headline = f"autocast's copies of weights take {copies} beside the weights themselves: {kept}"
    evidence = [
        f"the peak is {num_bytes(facts['peak_bytes'])}, in float32 {num_bytes(facts['baseline_peak_bytes'])}; "
        f"activations, all that autocast shrinks, save {num_bytes(facts['activations_saved_bytes'])}"
    ]
    if "paying_batch_size" in facts:
        evidence.append(
            f"with batches of {facts['paying_batch_size']} autocast saves {percent(facts['paying_saved_pct'])}"
        )
    change = "halve the state itself, with parameters in half precision (see what that does to the loss)"
    return Told(headline=headline, evidence=evidence, change=change, proof=_proof(finding))


SENTENCES: Final[dict[str, Callable[[DoctorFinding], Told]]] = {
    "float32_cast": _cast,
    "float32_autocast_off": _autocast_off,
    "float32_promoted": _promoted,
    "float32_policy": _policy,
    "cast_again": _again,
    "grows_from_step_to_step": _grows,
    "kept_by_a_module": _kept,
    "large_loss": _loss,
    "temporaries_of_the_update": _update,
    "resident_data": _data,
    "mostly_state": _state,
    "copies_of_weights": _state,
}


def _told(finding: DoctorFinding, headline: str, change: str) -> Told:
    return Told(headline=headline, change=change, proof=_proof(finding))


def _wide(finding: DoctorFinding) -> str:
    facts: dict[str, Any] = finding.evidence
    return (
        f"{num_bytes(facts['float32_bytes'])} of activations in float32 at a peak of {num_bytes(facts['peak_bytes'])}"
    )


def _named(module: str) -> str:
    return module or "the model itself"


def _modules(finding: DoctorFinding) -> str:
    return listed(map(_named, finding.modules), _MOST_MODULES)


def _where(finding: DoctorFinding) -> str:
    function = finding.evidence["function"]
    return f"{function} in {_modules(finding)}" + (f" ({finding.place})" if finding.place else "")


def _proof(finding: DoctorFinding) -> str | None:
    proof: dict[str, Any] = finding.proof
    if "peak_bytes_after" not in proof:
        return None
    before, after = num_bytes(proof["peak_bytes_before"]), num_bytes(proof["peak_bytes_after"])
    return f"traced again with that, the peak is {after} in place of {before}"


def _growth_proof(finding: DoctorFinding) -> str | None:
    proof: dict[str, Any] = finding.proof
    if "growth_bytes" not in proof:
        return None
    return f"without what it holds, a step leaves {num_bytes(proof['growth_bytes'])} behind"
