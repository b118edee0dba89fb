"""The findings of the complaint `speed` in words: what keeps a training from gaining time."""

from collections.abc import Callable
from typing import Any, Final

from ampsweep.record.diagnosis import Finding
from ampsweep.report.sentences.findings.told import Told
from ampsweep.text import milliseconds, number, percent, ratio


def _data_bound(finding: Finding) -> Told:
    e = finding.evidence
    workers = e["num_workers"]
    evidence = [
        f"a step waits {_ms(e, 'wait_ms')} of its {_ms(e, 'step_ms')} for its batch "
        f"(mean of {e['num_steps']} steps on batches not read before)"
    ]
    if workers is not None:
        evidence.append(f"{workers} worker{'' if workers == 1 else 's'} read ahead")
    return Told(
        headline=f"Steps wait for data{_at(finding)}, which no precision shortens",
        evidence=evidence,
        change="read batches ahead in more processes"
        if finding.change.overrides
        else "prepare batches once, or have workers read them ahead, as ampsweep.data.map_dataset.MapDataset does",
    )


def _host_bound(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"Python code{_in(finding)}{_at(finding)} holds up the step",
        evidence=[
            f"the host spends {_ms(e, 'host_ms')} of a step of {_ms(e, 'step_ms')} on it, while no operator runs"
        ],
        change="write it as operators on tensors, or take it out of the step",
    )


def _launch_bound(finding: Finding) -> Told:
    e = finding.evidence
    evidence = [
        f"the step has {e['num_operators']} operators of {number(_float(e, 'us_per_operator'))} us each; launching "
        f"them alone takes about {_ms(e, 'launch_ms')} of {_ms(e, 'step_ms')}"
    ]
    if finding.modules:
        evidence.append(f"{percent(_float(e, 'operators_here_pct'))} of them are called in {_name(finding.modules[0])}")
    return Told(
        headline=f"Operators{_in(finding)}{_at(finding)} are too small for what it costs to launch them",
        evidence=evidence,
        change="do the work of many calls in one, on larger tensors" if finding.modules else "give a step more work",
    )


def _small_batch(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"A batch of {e['batch_size']} does not fill the device",
        evidence=[
            f"a sample takes {percent(100 * _float(e, 'double_ms_per_sample_ratio'))} of its time in batches of twice "
            f"the size, and {percent(100 * _float(e, 'half_ms_per_sample_ratio'))} in batches of half the size"
        ],
        change="train in larger batches",
    )


def _synchronizations(finding: Finding) -> Told:
    e = finding.evidence
    lines = [str(line) for line in _list(e, "lines")]
    return Told(
        headline=f"The host waits for the device{_in(finding)}{_at(finding)}",
        evidence=[
            f"{e['num_waits']} times in a step; the device has nothing to do for {_ms(e, 'idle_ms')} of "
            f"{_ms(e, 'step_ms')}",
            *([f"torch warns of {', '.join(lines)}"] if lines else []),
        ],
        change="leave numbers on the device: no .item(), .cpu(), print or condition on a tensor within the step",
    )


def _no_fast_units(finding: Finding) -> Told:
    e = finding.evidence
    rates = (
        f"matrix products run at {number(_float(e, 'gflops_per_s'))} GFLOP/s in {e['dtype']} and at "
        f"{number(_float(e, 'float32_gflops_per_s'))} in float32"
    )
    if e["other_dtype"] is not None:
        rates += f"; in {e['other_dtype']} at {number(_float(e, 'other_gflops_per_s'))}"
    return Told(
        headline=f"This device has no fast units for {e['dtype']}",
        evidence=[
            rates,
            f"they are {percent(_float(e, 'products_pct'))} of the step, which runs at {ratio(_float(e, 'speedup'))} "
            "the speed of float32",
        ],
        change="train in a precision that this device is fast in",
    )


def _unaligned_sizes(finding: Finding) -> Told:
    e = finding.evidence
    pairs = ", ".join(
        f"{one} to {other}" for one, other in zip(_list(e, "sizes"), _list(e, "padded_sizes"), strict=True)
    )
    return Told(
        headline=f"Matrices{_in(finding)} have sizes that the device's fast units do not take whole",
        evidence=[
            f"padded ({pairs}), the same products took {_ms(e, 'gain_ms')} less than their {_ms(e, 'own_ms')}, in a "
            f"step of {_ms(e, 'step_ms')}"
        ],
        change="round the sizes up",
    )


def _float32_products(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"{finding.operator} computes in float32{_in(finding)}{_at(finding)}",
        evidence=[
            f"{e['num_calls']} such products take {_ms(e, 'own_ms')} of a step of {_ms(e, 'step_ms')}; called with the "
            f"same values in {e['dtype']} they take {_ms(e, 'gain_ms')} less"
        ],
        change="let autocast have it"
        if finding.change.overrides
        else "take out what switches autocast off there, and casts to float32",
    )


def _fixed_operators(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"{finding.operator}{_in(finding)}{_at(finding)} takes much of the step, and gains nothing",
        evidence=[
            f"it and others there take {_ms(e, 'ms')} of a step of {_ms(e, 'step_ms')}, as in float32 "
            f"(results: {', '.join(map(str, _list(e, 'dtypes')))})",
            f"the step as a whole runs at {ratio(_float(e, 'speedup'))} the speed of float32",
        ],
        change="replace it by a cheaper operator, or by matrix products, which half precision shortens",
    )


def _optimizer_bound(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline="The optimizer takes most of the step",
        evidence=[
            f"{e['num_operators']} operators after backward take {_ms(e, 'ms')} of a step of {_ms(e, 'step_ms')}; they "
            "work on parameters and state in the dtype of the parameters"
        ],
        change="use the optimizer's fused kernel"
        if finding.change.overrides
        else "train in larger batches, or accumulate gradients over several, so that it steps less often",
    )


def _repeated_weight_casts(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"Weights{_in(finding)} are cast to half precision again and again",
        evidence=[
            f"{e['parameter']} is cast {e['num_casts']} times in a step, where {e['num_needed']} would do",
            f"casts that are not needed take {_ms(e, 'ms')} of a step of {_ms(e, 'step_ms')}",
        ],
        change="have autocast keep its copies"
        if finding.change.overrides
        else "cast a weight once and use the copy, or leave casts to autocast, which keeps its copies",
    )


def _activation_casts(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"Activations{_in(finding)}{_at(finding)} are cast to float32 and back",
        evidence=[
            f"such casts and those of their gradients take {_ms(e, 'ms')} of a step of {_ms(e, 'step_ms')} and move "
            f"{percent(_float(e, 'bytes_pct'))} of its bytes"
        ],
        change="take out the casts, or keep in one dtype what lies between them",
    )


def _graph_break(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"torch.compile breaks its graph{_in(finding)}{_at(finding)}",
        evidence=[
            f"{str(e['reason']).rstrip('.')}",
            f"the step has {e['num_graphs']} graphs; going from one to the next and their guards take "
            f"{_ms(e, 'guards_ms')} of a step, without what could have been fused",
        ],
        change="write the line so that it can be traced, or take it out of the model",
    )


def _slower_operators(finding: Finding) -> Told:
    e = finding.evidence
    return Told(
        headline=f"{finding.operator}{_in(finding)}{_at(finding)} is slower in {e['dtype']} than in float32",
        evidence=[
            f"on this device {e['num_calls']} calls take {_ms(e, 'own_ms')} of a step of {_ms(e, 'step_ms')}; the same "
            f"calls in float32 take {_ms(e, 'float32_ms')}"
        ],
        change="keep what is slow in float32"
        if finding.change.overrides
        else "cast the inputs of this line to float32, with autocast off around it if there is any",
    )


def _slower_than_float32(finding: Finding) -> Told:
    e = finding.evidence
    more = int(_float(e, "num_operators")) - int(_float(e, "num_float32_operators"))
    return Told(
        headline="The step takes longer than in float32",
        evidence=[
            f"{_ms(e, 'step_ms')} against {_ms(e, 'float32_ms')}, taken in turn: {ratio(_float(e, 'speedup'))} the "
            f"speed; at best {ratio(_float(e, 'bound'))} would be possible",
            f"it has {more} operators more, and casts take {_ms(e, 'casts_ms')}",
        ],
        change="train in float32, or give each operator more work",
    )


def _float(evidence: dict[str, object], name: str) -> float:
    value = evidence[name]
    assert isinstance(value, int | float), f"{name} is {value!r}"
    return float(value)


def _list(evidence: dict[str, object], name: str) -> list[Any]:
    value = evidence[name]
    assert isinstance(value, list), f"{name} is {value!r}"
    return value


def _ms(evidence: dict[str, object], name: str) -> str:
    return milliseconds(_float(evidence, name))


def _name(module: str) -> str:
    return module or "the model's own forward"


def _in(finding: Finding) -> str:
    """The modules that a finding is about, as the part of a sentence."""
    if not finding.modules:
        return ""
    more = len(finding.modules) - 1
    return f" in {_name(finding.modules[0])}" + (f" and {more} like it" if more else "")


def _at(finding: Finding) -> str:
    return "" if finding.place is None else f" ({finding.place})"


SENTENCES: Final[dict[str, Callable[[Finding], Told]]] = {
    "data_bound": _data_bound,
    "host_bound": _host_bound,
    "launch_bound": _launch_bound,
    "small_batch": _small_batch,
    "synchronizations": _synchronizations,
    "no_fast_units": _no_fast_units,
    "unaligned_sizes": _unaligned_sizes,
    "float32_products": _float32_products,
    "fixed_operators": _fixed_operators,
    "optimizer_bound": _optimizer_bound,
    "repeated_weight_casts": _repeated_weight_casts,
    "activation_casts": _activation_casts,
    "graph_break": _graph_break,
    "slower_operators": _slower_operators,
    "slower_than_float32": _slower_than_float32,
}
