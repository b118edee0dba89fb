"""The sentences of the complaint `loss`: it is inf or NaN, or worse than in float32."""

from collections.abc import Callable
from typing import Any, Final

from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import number, plural

_IN_FLOAT32: Final = "keep it in float32"
_KEPT: Final = {
    "mask_overflow": (
        "an attention mask of a constant beyond the range of {dtype} becomes -inf{at}",
        "a row that is masked everywhere then has NaN in its softmax; mask with the lowest number of the scores' dtype",
    ),
    "exp_overflow": (
        "exp overflows {dtype}{at}: it gets values up to {input_max}, and {dtype} holds no more than exp({exp_max})",
        "compute it in float32, or keep what it gets small",
    ),
    "long_sum": (
        "a sum over {reduced} elements overflows {dtype}{at}",
        "add up in float32",
    ),
    "eps_vanishes": (
        "eps={eps} is zero in {dtype}{at}, and {operator} gets zeros",
        "use an eps that {dtype} holds, or compute this in float32",
    ),
    "divisor_vanishes": ("a divisor is zero in {dtype} and not in float32{at}", _IN_FLOAT32),
    "tiny_divisor": ("a division by a tiny number overflows {dtype}{at}", _IN_FLOAT32),
    "log_of_zero": (
        "a number that is above zero in float32 is zero in {dtype}, and its logarithm infinite{at}",
        "compute the logarithm of the probability from the logits, or what makes the probability in float32",
    ),
    "rounded_probability": (
        "probabilities round to exactly 0 or 1 in {dtype}, and the loss cuts their logarithms off{at}",
        "replace the loss by the one that takes logits, or compute what makes the probabilities in float32",
    ),
    "cancellation": (
        "a difference of close numbers is below zero in {dtype}, and its root is NaN{at}",
        "compute it in float32, or without a difference of large numbers",
    ),
    "growing_sum": ("a sum of values that {dtype} still holds is beyond its range{at}", _IN_FLOAT32),
    "value_overflow": ("values of up to {float32_max} leave the range of {dtype}{at}", _IN_FLOAT32),
    "gradient_overflow": (
        "the gradient leaves the range of {dtype} at any scale, in the backward pass{at}",
        _IN_FLOAT32,
    ),
    "update_overflow": ("the optimizer's step makes inf or NaN in {dtype}{at}", "train with float32 parameters"),
    "coarse_rounding": (
        "{dtype} rounds so coarsely{at} that the loss is another than in float32",
        "compute it in float32",
    ),
}
"""By kind the headline, and the change in words."""
_OF_THE_MODE: Final = {
    "gradients_vanish": (
        "gradients are too small for float16, and no scaler makes them larger",
        "train with a scaler",
    ),
    "scale_too_small": (
        "the scale of {init_scale} is too small: gradients vanish in float16",
        "begin with a larger scale",
    ),
    "scale_too_large": (
        "the scale begins at {init_scale}, and steps are skipped until it is smaller",
        "begin with a smaller scale",
    ),
    "optimizer_eps": (
        "the optimizer's eps={eps} is zero in float16, and it divides by zero",
        "use an eps that float16 holds, or float32 parameters (amp_fp16)",
    ),
    "updates_lost": (
        "{unchanged_pct} % of the weights with a gradient stay as they are: updates are smaller than half the distance "
        "to the next number in {dtype}",
        "keep the parameters in float32",
    ),
}
"""The same of faults of the mode itself, which no module has."""

_EXP_MAX: Final = {"float16": 11, "bfloat16": 88}


def _kept(finding: DoctorFinding) -> Told:
    facts = finding.evidence
    headline, change = _KEPT[finding.kind]
    values = {
        "dtype": facts["dtype"],
        "operator": finding.operator,
        "at": _at(finding),
        "eps": _number(facts.get("eps")),
        "reduced": _number(facts.get("reduced_elements")),
        "input_max": _number(facts.get("input_max_abs")),
        "float32_max": _number(facts.get("float32_max_abs")),
        "exp_max": _EXP_MAX.get(str(facts["dtype"])),
    }
    if finding.kind == "coarse_rounding" and facts["sign"] == "vanished_gradients":
        headline = "gradients become zero in {dtype}{at}"
    if facts.get("takes_shift"):
        change = "subtract the maximum before exp, or use torch.softmax, which does: the loss stays as it is"
    evidence = [*_shown(finding), *_origin(finding), *_switches(finding), *_set(finding)]
    return _told(finding, headline.format_map(values), evidence, change.format_map(values))


def _raised(finding: DoctorFinding, said: str, change: str) -> Told:
    """Tell an error of an operator: `said` is what is wrong with the call."""
    evidence = [f"step {finding.evidence['step']} ends with: {finding.evidence['error']}"]
    return _told(finding, f"{finding.operator}{_at(finding)} {said}", evidence, change)


def _refused(finding: DoctorFinding) -> Told:
    change = "compute the loss from logits: that of probabilities is not safe in half precision"
    return _raised(finding, "refuses autocast", change)


def _no_kernel(finding: DoctorFinding) -> Told:
    return _raised(finding, f"does not exist in {finding.evidence['dtype']} on this device", _IN_FLOAT32)


def _mask(finding: DoctorFinding) -> Told:
    if finding.evidence["sign"] != "error":
        return _kept(finding)
    said = f"is given {_number(finding.evidence['scalar'])}, which {finding.evidence['dtype']} cannot hold"
    return _raised(finding, said, "mask with the lowest number of the scores' dtype")


def _mode(finding: DoctorFinding) -> Told:
    headline, change = _OF_THE_MODE[finding.kind]
    values = {name: _number(value) for name, value in finding.evidence.items()}
    evidence = _shown(finding)
    if finding.kind == "optimizer_eps":
        evidence.append("the squares of small gradients are zero in float16, too")
    return _told(finding, headline.format_map(values), evidence, change)


def _not_precision(finding: DoctorFinding) -> Told:
    headline = "the loss goes wrong in float32, too: precision is not the cause"
    change = "look at the learning rate, the data and the loss first"
    return Told(headline=headline, evidence=_shown(finding), change=change)


def _no_part(finding: DoctorFinding) -> Told:
    dtype = finding.evidence["dtype"]
    headline = f"the loss goes wrong in {dtype} and not in float32, and no change that was tried mends it"
    if finding.kind == "whole_model":
        headline = f"no few modules in float32 mend the loss in {dtype}"
    change = "train in another mode" if finding.change.overrides else None
    return _told(finding, headline, [*_shown(finding), *_switches(finding)], change)


def _unsearched(finding: DoctorFinding) -> Told:
    headline = (
        f"the loss goes wrong in {finding.evidence['dtype']} and not in float32; time was up before the cause was known"
    )
    return Told(headline=headline, evidence=_shown(finding), change="give the doctor more time (doctor.max_seconds)")


SENTENCES: Final[dict[str, Callable[[DoctorFinding], Told]]] = {
    **dict.fromkeys(_KEPT, _kept),
    **dict.fromkeys(_OF_THE_MODE, _mode),
    "mask_overflow": _mask,
    "refused_loss": _refused,
    "no_kernel": _no_kernel,
    "not_precision": _not_precision,
    "whole_model": _no_part,
    "unexplained": _no_part,
    "unsearched": _unsearched,
}


def _shown(finding: DoctorFinding) -> list[str]:
    """Tell how the fault shows."""
    facts: dict[str, Any] = finding.evidence
    step, own, base = facts["step"], _number(facts["loss"]), _number(facts.get("baseline_loss"))
    if facts["sign"] == "nonfinite_loss":
        return [f"the loss is {own} at step {step}, and {base} in float32"]
    if facts["sign"] == "nonfinite_gradients":
        return [f"gradients are not finite at step {step}, and nothing skips it; they are in float32"]
    if facts["sign"] == "skipped_steps":
        skipped = f"{facts['num_skipped']} of {facts['num_steps']} steps are skipped"
        return [f"{skipped}, still at step {step} with a scale of {_number(facts['scale'])}; float32 takes them all"]
    if facts["sign"] == "vanished_gradients":
        return [f"{_number(facts['vanished_pct'])} % of the gradient is zero where it is not in float32"]
    when = "the first loss" if facts["sign"] == "different_loss" else f"the mean loss of the last steps up to {step}"
    gap = f"{when} differs from that in float32 by {_number(facts['gap'])}"
    return [f"{gap}; errors in the weights as large as rounding explain {_number(facts['allowed_gap'])}"]


def _origin(finding: DoctorFinding) -> list[str]:
    """The operator that made inf or NaN, and of what."""
    facts = finding.evidence
    if "phase" not in facts or facts.get("input_max_abs") is None:
        return []
    gets = f"{finding.operator} in the {facts['phase']} pass gets values up to {_number(facts['input_max_abs'])}"
    if (wide := facts.get("float32_max_abs")) is None:
        return [gets]
    return [f"{gets}; its result would reach {_number(wide)} in float32"]


def _switches(finding: DoctorFinding) -> list[str]:
    """Tell what switching a part of the precision off by itself does."""
    facts, told = finding.evidence, []
    for key, what in (
        ("autocast_off_mends", "switching autocast off"),
        ("scaler_off_mends", "switching the scaler off"),
        ("scaler_on_mends", "adding a scaler"),
    ):
        if key in facts:
            told.append(f"{what} {'mends it' if facts[key] else 'does not mend it'}")
    return ["; ".join(told)] if told else []


def _set(finding: DoctorFinding) -> list[str]:
    """The smallest set, and the replays that it took."""
    facts: dict[str, Any] = finding.evidence
    if "num_replays" not in facts:
        return []
    size = max(len(finding.modules), 1)
    set_of = "one" if size == 1 else f"{size}"
    proved = "without any one of them the fault is back" if facts["is_minimal"] and size > 1 else None
    if not facts["is_minimal"]:
        proved = "there may be a smaller set"
    found = f"{set_of} of {facts['num_modules']} modules in float32 {'mends' if size == 1 else 'mend'} it"
    found = f"{found}, found in {plural(facts['num_replays'], 'replay')}"
    told = [found if proved is None else f"{found}; {proved}"]
    if functions := facts.get("functions"):
        lines = [f"{one} ({place})" for one, place in zip(functions, facts["places"], strict=True)]
        told.append(
            f"in place of whole modules it is enough to compute {' and '.join(dict.fromkeys(lines))} in float32"
        )
    return told


def _told(finding: DoctorFinding, headline: str, evidence: list[str], change: str | None) -> Told:
    return Told(headline=headline, evidence=evidence, change=change, proof=_proof(finding))


def _proof(finding: DoctorFinding) -> str | None:
    proof = finding.proof
    if not proof:
        return None
    tried = f"tried for {proof['num_steps']} steps"
    if not proof["mends"]:
        return f"{tried}: it helps, but the loss is still worse than in float32"
    price = []
    if (time := proof.get("time_ratio")) is not None:
        price.append(f"{_number(time)} times the step's time")
    if (memory := proof.get("memory_ratio")) is not None:
        price.append(f"{_number(memory)} times its peak memory")
    told = f"{tried}: the fault is gone"
    return f"{told}, at {' and '.join(price)}" if price else told


def _at(finding: DoctorFinding) -> str:
    """Tell the module and the line."""
    inner = [one or "the model itself" for one in finding.modules]
    names = f" in {inner[0]}" if inner else " outside the model"
    if len(inner) > 1:
        names += f" and {len(inner) - 1} more"
    return names if finding.place is None else f"{names} ({finding.place})"


def _number(value: object) -> str:
    """A number as people read it; inf and NaN as a diagnosis writes them."""
    return number(value) if isinstance(value, float | int) else f"{value}"
