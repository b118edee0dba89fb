"""The examination of a training whose memory did not shrink."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.memory.findings import (
    CastAgain,
    CopiesOfWeights,
    Float32AutocastOff,
    GrowsFromStepToStep,
    GrowthAgain,
    LargeLoss,
    MemoryFinding,
    MostlyState,
    TracedAgain,
)
from ampsweep.doctor.memory.traced import STATE, Held, TracedMemory, holders, trace_memory
from ampsweep.doctor.memory.wide_activations import wide_activations
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.spot import Spot
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call
from ampsweep.text import one_line
from ampsweep.training.trainer import Trainer

_MIN_COST_PCT: Final = 8.0
"""Less than this share of the peak is no finding."""
_MOST_CAUSES: Final = 4
"""The most causes of one kind that are tried or reported."""
_SHRUNK_SHARE: Final = 0.03
"""A peak that is this much smaller than in float32 has shrunk, if little: the training holds mostly what stays."""
_MIN_GROWTH_PCT: Final = 1.0
_MIN_WIDE_PCT: Final = 12.0
"""Less in float32 than this share of the peak cannot save enough: half of it is what a change may save, and what its
gradients take."""
_LOSS_PCT: Final = 35.0
"""Share of the peak from which on the loss's own tensors are a finding."""


def examine_memory(patient: Patient) -> list[MemoryFinding]:
    """Find out what keeps the peak of the training's tensors from being smaller than it is in float32.

    Raises:
        NotExaminedError: a step cannot be traced.
    """
    precision = patient.config.precision
    if patient.is_baseline or not (precision.autocast or precision.parameters != "float32"):
        return []
    try:
        own = trace_memory(patient)
        baseline = trace_memory(patient, replace(patient.config, precision=PRECISION_MODES["fp32"]), makers=False)
    except Exception as error:  # the model's own code may raise anything
        raise NotExaminedError(f"its step cannot be traced: {one_line(error)}") from error
    for name, memory in (("own", own), ("baseline", baseline)):
        patient.facts[f"memory/{name}_peak_bytes"] = memory.peak_bytes
        patient.facts |= {f"memory/{name}_{category}_bytes": size for category, size in memory.peak.items()}
    findings = [
        *_growth(patient, own),
        *_wide(patient, own),
        *_cast_again(patient, own),
        *_loss(patient, own),
    ]
    return sorted(findings or _unshrinkable(patient, own, baseline), key=lambda one: -(one.cost_pct or 0))


def tried(patient: Patient, config: Config | None = None, **changes: Any) -> TracedMemory | None:
    """Trace the training with changes, as `trace_memory` takes them; None if no time is left, or if it fails with
    them."""
    if patient.seconds_left < 0:
        return None
    try:
        return trace_memory(patient, config, makers=False, **changes)
    except Exception:  # noqa: BLE001  a change may not suit the training in any way
        return None


def _proof(own: TracedMemory, changed: TracedMemory | None) -> TracedAgain | None:
    """The proof of a change; None where it could not be tried."""
    if changed is None:
        return None
    return TracedAgain(
        mends=own.saved_pct(changed) >= _MIN_COST_PCT,
        peak_bytes_before=own.peak_bytes,
        peak_bytes_after=changed.peak_bytes,
    )


def _spot(held: Iterable[Held]) -> Spot[Call]:
    """The spot at which allocations were made."""
    return Spot.of((one.call, one.num_bytes) for one in held if one.call is not None)


def _size(held: Iterable[Held]) -> int:
    return sum(one.num_bytes for one in held)


def _growth(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Find memory that grows with each step, and the attribute of a module or the task that keeps it."""
    if own.pct(own.growth_bytes) < _MIN_GROWTH_PCT:
        return
    name, proof = _best_drop(patient, own)
    made = _spot(held for held in own.held if held.is_stale)
    made_in = made.modules[:_MOST_CAUSES]
    owner, _, attribute = (name or "").rpartition(".")
    yield GrowsFromStepToStep(
        cost_pct=own.pct(own.growth_bytes),
        modules=[owner] if name is not None and not name.startswith("task.") else made_in,
        place=made.place,
        attribute=name,
        growth_bytes=own.growth_bytes,
        made_in=made_in,
        change=Change(code=f"self.{attribute} = None  # or .detach() what goes into it" if attribute else None),
        proof=proof,
    )


def _best_drop(patient: Patient, own: TracedMemory) -> tuple[str | None, GrowthAgain | None]:
    """The attribute without which memory grows least, and the trace with it cleared after each step."""
    best, least_bytes, proof = None, own.growth_bytes, None
    for name in sorted(own.holders, key=lambda one: -own.holders[one])[:_MOST_CAUSES]:
        trial = tried(patient, between_steps=partial(_drop, name))
        if trial is not None and trial.growth_bytes < least_bytes:
            best, least_bytes = name, trial.growth_bytes
            proof = GrowthAgain(mends=least_bytes < own.growth_bytes / 10, growth_bytes=least_bytes)
    return best, proof


def _drop(name: str, trainer: Trainer) -> None:
    """Clear an attribute, if it holds tensors."""
    owner, attribute = holders(trainer).get(name, (None, ""))
    value = getattr(owner, attribute, None)
    if isinstance(value, list | dict):
        value.clear()
    elif owner is not None:
        setattr(owner, attribute, None)


def _wide(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Activations that stay in float32, by what keeps them there."""
    precision = patient.config.precision
    for group in wide_activations(own, autocasts=precision.autocast)[:_MOST_CAUSES]:
        if own.pct(group.num_bytes) < _MIN_WIDE_PCT:
            return
        overrides: list[str] = []
        if group.kind is Float32AutocastOff and precision.fp32_modules:
            overrides = ["precision.fp32_modules=[]"]
            changed = tried(patient, replace(patient.config, precision=replace(precision, fp32_modules=[])))
        else:
            changed = tried(patient, changes=dict.fromkeys(group.identities, group.kind.action))
        if changed is None or own.saved_pct(changed) < _MIN_COST_PCT:
            continue
        call, function = group.origin.call, group.origin.function
        assert call is not None
        assert function is not None
        code = next((changed.codes[one] for one in group.identities if one in changed.codes), None)
        partner = next((one.made for one in group.origin.sources if one.dtype == group.origin.dtype), None)
        yield group.kind(
            cost_pct=own.saved_pct(changed),
            modules=group.modules,
            operator=call.operator,
            place=function.identity.line,
            float32_bytes=group.num_bytes,
            peak_bytes=own.peak_bytes,
            function=function.identity.function,
            partner_by=None if partner is None else partner.kind,
            partner_name=None if partner is None else partner.name,
            change=Change(overrides=overrides, code=None if overrides else code),
            proof=_proof(own, changed),
        )


def _cast_again(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Copies in half precision of the same tensor that are alive together."""
    precision, groups = patient.config.precision, defaultdict[int, list[Held]](list)
    for held in own.held:
        if held.origin is not None and held.origin.kind == "autocast" and held.origin.sources:
            groups[id(held.origin.sources[0].made)].append(held)
    again = [sorted(group, key=lambda one: -one.num_bytes)[1:] for group in groups.values() if len(group) > 1]
    extra = [held for group in again for held in group]
    extra_bytes, spot = _size(extra), _spot(extra)
    if own.pct(extra_bytes) < _MIN_COST_PCT:
        return
    first = max(extra, key=lambda one: one.num_bytes)
    overrides: list[str] = []
    if precision.cache_enabled:
        changed = tried(patient, shares_casts=True)
    else:
        overrides = ["precision.cache_enabled=true"]
        changed = tried(patient, replace(patient.config, precision=replace(precision, cache_enabled=True)))
    if changed is None or own.saved_pct(changed) < _MIN_COST_PCT:
        return
    assert first.origin is not None
    source = first.origin.sources[0].made
    yield CastAgain(
        cost_pct=own.saved_pct(changed),
        modules=spot.modules or [""],
        operator=spot.operator,
        place=spot.place,
        extra_bytes=extra_bytes,
        num_copies=len(extra) + len(again),
        num_tensors=len(again),
        source_by=source.kind,
        source_name=source.name,
        cache_enabled=precision.cache_enabled,
        change=Change(overrides=overrides, code=None if overrides else _cast_once(first, source)),
        proof=_proof(own, changed),
    )


def _cast_once(copy: Held, source: TensorOrigin) -> str:
    """The line of code that casts a tensor before it is used several times."""
    assert copy.origin is not None
    name = "x" if source.name is None else source.name.rpartition(".")[2]
    owner = "" if source.name is None else "self."
    return f"{name} = {owner}{name}.to({copy.origin.dtype})"


def _loss(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Tensors in float32 of a loss over large outputs."""
    held = [
        one
        for one in own.held
        if one.category in ("activations", "temporary") and one.call is not None and one.call.module is None
    ]
    num_bytes = _size(held)
    if own.pct(num_bytes) < _LOSS_PCT:
        return
    largest = max(held, key=lambda one: one.num_bytes)
    config, batch_size = patient.config, int(patient.config.data["batch_size"])
    overrides, proof = list[str](), None
    parts = next((one for one in (4, 2) if batch_size % one == 0), None)
    if parts is not None:
        accum = config.trainer.grad_accum_steps * parts
        smaller = replace(
            config,
            data=config.data | {"batch_size": batch_size // parts},
            trainer=replace(config.trainer, grad_accum_steps=accum),
        )
        overrides = [f"data.batch_size={batch_size // parts}", f"trainer.grad_accum_steps={accum}"]
        proof = _proof(own, tried(patient, smaller))
    assert largest.call is not None
    yield LargeLoss(
        cost_pct=own.pct(num_bytes),
        operator=largest.call.operator,
        place=_spot(held).place,
        loss_bytes=num_bytes,
        num_tensors=sum(one.num_bytes >= largest.num_bytes / 4 for one in held),
        shape="x".join(map(str, largest.shape)),
        dtype="" if largest.origin is None else dtype_name(largest.origin.dtype),
        change=Change(overrides=overrides),
        proof=proof,
    )


def _unshrinkable(patient: Patient, own: TracedMemory, baseline: TracedMemory) -> Iterator[MemoryFinding]:
    """Find a peak that is mostly what autocast leaves as it is, or that its copies of weights make larger."""
    if not patient.config.precision.autocast or own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes:
        return
    copied = [held for held in own.held if held.category == "autocast_weights"]
    has_copies = own.pct(_size(copied)) >= _MIN_COST_PCT
    if not has_copies and own.peak_bytes < MIN_PEAK_BYTES:
        return
    half = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[patient.config.precision.dtype]
    kind = CopiesOfWeights if has_copies else MostlyState
    yield kind(
        cost_pct=own.pct(_size(copied) if has_copies else own.peak_of(*STATE)),
        modules=_spot(copied).modules if has_copies else [],
        peak_bytes=own.peak_bytes,
        baseline_peak_bytes=baseline.peak_bytes,
        parameters_bytes=own.peak_of("parameters"),
        gradients_bytes=own.peak_of("gradients"),
        optimizer_state_bytes=own.peak_of("optimizer_state"),
        autocast_weights_bytes=_size(copied),
        activations_saved_bytes=_activations(baseline) - _activations(own),
        change=Change(overrides=[f"precision={half}"]),
        proof=_proof(own, tried(patient, replace(patient.config, precision=PRECISION_MODES[half]))),
    )


def _activations(memory: TracedMemory) -> int:
    return max(memory.peak_of("activations"), memory.end_of_forward["activations"])
