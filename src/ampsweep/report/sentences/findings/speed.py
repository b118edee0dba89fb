"""The findings of the complaint `speed` in words: what keeps a training from gaining time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import milliseconds, number, percent, plural, ratio


@dataclass(frozen=True)
class _Words:
    """Sentences with a finding's facts by name; `{in}` is where it is in the model, `{at}` its line."""

    headline: str
    evidence: tuple[str, ...]
    change: str
    override: str | None = None
    """The change in words where an override makes it."""


_WORDS: Final = {
    "data_bound": _Words(
        "Steps wait for data{at}, which no precision shortens",
        (
            "a step waits {wait_ms} of its {step_ms} for its batch (mean of {num_steps} steps on batches not read "
            "before)",
        ),
        "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does",
        override="read batches ahead in more processes",
    ),
    "host_bound": _Words(
        "Python code{in}{at} holds up the step",
        ("the host spends {host_ms} of a step of {step_ms} on it, while no operator runs",),
        "write it as operators on tensors, or take it out of the step",
    ),
    "launch_bound": _Words(
        "Operators{in}{at} are too small for what it costs to launch them",
        (
            "the step has {num_operators} operators of {us_per_operator} us each; launching them alone takes about "
            "{launch_ms} of {step_ms}",
        ),
        "do the work of many calls in one, on larger tensors",
        override="give a step more work",
    ),
    "small_batch": _Words(
        "A batch of {batch_size} does not fill the device",
        (
            "a sample takes {double_ms_per_sample_ratio} of its time in batches of twice the size, and "
            "{half_ms_per_sample_ratio} in batches of half the size",
        ),
        "train in larger batches",
    ),
    "synchronizations": _Words(
        "The host waits for the device{in}{at}",
        ("{num_waits} times in a step; the device has nothing to do for {idle_ms} of {step_ms}",),
        "leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step",
    ),
    "no_fast_units": _Words(
        "This device has no fast units for {dtype}",
        (
            "matrix products run at {gflops_per_s} GFLOP/s in {dtype} and at {float32_gflops_per_s} in float32{other}",
            "they are {products_pct} of the step, which runs at {speedup} the speed of float32",
        ),
        "train in a precision that this device is fast in",
    ),
    "unaligned_sizes": _Words(
        "Matrices{in} have sizes that the device's fast units do not take whole",
        ("padded ({padding}), the same products took {gain_ms} less than their {own_ms}, in a step of {step_ms}",),
        "round the sizes up",
    ),
    "float32_products": _Words(
        "{operator} computes in float32{in}{at}",
        (
            "{num_calls} such products take {own_ms} of a step of {step_ms}; called with the same values in {dtype} "
            "they take {gain_ms} less",
        ),
        "take out what switches autocast off there, and casts to float32",
        override="let autocast have it",
    ),
    "fixed_operators": _Words(
        "{operator}{in}{at} takes much of the step, and gains nothing",
        (
            "it and others there take {ms} of a step of {step_ms}, as in float32 (results: {dtypes})",
            "the step as a whole runs at {speedup} the speed of float32",
        ),
        "replace it by a cheaper operator, or by matrix products, which half precision shortens",
    ),
    "optimizer_bound": _Words(
        "The optimizer takes most of the step",
        (
            "{num_operators} operators after backward take {ms} of a step of {step_ms}; they work on parameters and "
            "state in the dtype of the parameters",
        ),
        "train in larger batches, or accumulate gradients over several, so that it steps less often",
        override="use the optimizer's fused kernel",
    ),
    "repeated_weight_casts": _Words(
        "Weights{in} are cast to half precision again and again",
        (
            "{parameter} is cast {num_casts} times in a step, where {num_needed} would do",
            "casts that are not needed take {ms} of a step of {step_ms}",
        ),
        "cast a weight once and use the copy, or leave casts to autocast, which keeps its copies",
        override="have autocast keep its copies",
    ),
    "activation_casts": _Words(
        "Activations{in}{at} are cast to float32 and back",
        ("such casts and those of their gradients take {ms} of a step of {step_ms} and move {bytes_pct} of its bytes",),
        "take out the casts, or keep in one dtype what lies between them",
    ),
    "graph_break": _Words(
        "torch.compile breaks its graph{in}{at}",
        (
            "{reason}",
            "the step has {num_graphs} graphs; going from one to the next and their guards take {guards_ms} of a step, "
            "without what could have been fused",
        ),
        "write the line so that it can be traced, or take it out of the model",
    ),
    "slower_operators": _Words(
        "{operator}{in}{at} is slower in {dtype} than in float32",
        (
            "on this device {num_calls} calls take {own_ms} of a step of {step_ms}; the same calls in float32 take "
            "{float32_ms}",
        ),
        "cast the inputs of this line to float32, with autocast off around it if there is any",
        override="keep what is slow in float32",
    ),
    "slower_than_float32": _Words(
        "The step takes longer than in float32",
        (
            "{step_ms} against {float32_ms}, taken in turn: {speedup} the speed; at best {bound} would be possible",
            "it has {more_operators} operators more, and casts take {casts_ms}",
        ),
        "train in float32, or give each operator more work",
    ),
}


def _told(finding: DoctorFinding) -> Told:
    words, values = _WORDS[finding.kind], _values(finding)
    return Told(
        headline=words.headline.format_map(values),
        evidence=[*(one.format_map(values) for one in words.evidence), *_more_evidence(finding)],
        change=words.override if words.override is not None and finding.change.overrides else words.change,
    )


def _more_evidence(finding: DoctorFinding) -> list[str]:
    """The sentences that findings of a kind do not always have."""
    facts: dict[str, Any] = finding.evidence
    match finding.kind:
        case "data_bound" if facts["num_workers"] is not None:
            return [f"{plural(facts['num_workers'], 'worker')} read ahead"]
        case "launch_bound" if finding.modules:
            return [f"{percent(facts['operators_here_pct'])} of them are called in {_name(finding.modules[0])}"]
        case "synchronizations" if facts["lines"]:
            return [f"torch warns of {', '.join(facts['lines'])}"]
    return []


def _values(finding: DoctorFinding) -> dict[str, str]:
    """The words of a finding that sentences name."""
    facts: dict[str, Any] = finding.evidence
    values = {name: _written(name, value) for name, value in facts.items()}
    values |= {"operator": str(finding.operator), "in": _in(finding), "at": _at(finding)}
    match finding.kind:
        case "no_fast_units":
            has_other = facts["other_dtype"] is not None
            values["other"] = f"; in {values['other_dtype']} at {values['other_gflops_per_s']}" if has_other else ""
        case "unaligned_sizes":
            pairs = zip(facts["sizes"], facts["padded_sizes"], strict=True)
            values["padding"] = ", ".join(f"{own} to {padded}" for own, padded in pairs)
        case "slower_than_float32":
            values["more_operators"] = str(facts["num_operators"] - facts["num_float32_operators"])
    return values


def _written(name: str, value: Any) -> str:
    """A fact with its unit, which the end of its name tells."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, str):
        return f"{value}".rstrip(".")
    if name in ("speedup", "bound"):
        return ratio(value)
    if name.endswith("_ratio"):
        return percent(100 * value)
    if name.endswith("_pct"):
        return percent(value)
    if name == "ms" or name.endswith("_ms"):
        return milliseconds(value)
    return number(value) if isinstance(value, float) else str(value)


def _name(module: str) -> str:
    return module or "the model's own forward"


def _in(finding: DoctorFinding) -> str:
    """The modules that a finding is about, as the part of a sentence."""
    if not finding.modules:
        return ""
    more = len(finding.modules) - 1
    return f" in {_name(finding.modules[0])}" + (f" and {more} like it" if more else "")


def _at(finding: DoctorFinding) -> str:
    return "" if finding.place is None else f" ({finding.place})"


SENTENCES: Final[dict[str, Callable[[DoctorFinding], Told]]] = dict.fromkeys(_WORDS, _told)
