"""The examination of a training whose memory did not shrink."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.memory.findings import (
    CastAgain,
    CopiesOfWeights,
    GrowsFromStepToStep,
    GrowthAgain,
    KeptByAModule,
    LargeLoss,
    MemoryFinding,
    MostlyState,
    PayingBatch,
    ResidentData,
    TemporariesOfTheUpdate,
)
from ampsweep.doctor.memory.traced import Held, TracedMemory, holders, trace_memory, with_precision
from ampsweep.doctor.memory.trials import MIN_COST_PCT, MOST_CAUSES, by_module, compared, pct, place, saved_pct, tried
from ampsweep.doctor.memory.wide_activations import CAUSES, wide_activations
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.memory_categories import MemoryCategory
from ampsweep.numeric_formats import dtype_name
from ampsweep.text import one_line
from ampsweep.training.trainer import Trainer

_SHRUNK_SHARE: Final = 0.03
"""A peak that is this much smaller than in float32 has shrunk, if little: the training holds mostly what stays."""
_PAYING_PCT: Final = 20.0
"""A saving with which a larger batch pays."""
_MOST_BYTES: Final = 4 * 2**30
"""The largest peak that a trial with larger batches is expected to have."""
_STATE: Final[tuple[MemoryCategory, ...]] = ("parameters", "gradients", "optimizer_state")
_MIN_GROWTH_SHARE: Final = 0.01
_MIN_WIDE_PCT: Final = 12.0
"""Less in float32 than this share of the peak cannot save enough: half of it is what a change may save, and what its
gradients take."""
_LOSS_SHARE: Final = 0.35
"""Share of the peak from which on the loss's own tensors are a finding."""
_UPDATE_SHARE: Final = 0.15
_DATA_SHARE: Final = 0.25


def examine_memory(patient: Patient) -> list[MemoryFinding]:
    """Find out what keeps the peak of the training's tensors from being smaller than it is in float32.

    Raises:
        NotExaminedError: a step cannot be traced.
    """
    if patient.is_baseline or not _saves(patient.config):
        return []
    try:
        own = trace_memory(patient)
        baseline = trace_memory(patient, replace(patient.config, precision=PRECISION_MODES["fp32"]), makers=False)
    except Exception as error:  # the model's own code may raise anything
        raise NotExaminedError(f"its step cannot be traced: {one_line(error)}") from error
    _tell(patient, own, baseline)
    findings = [
        *_left_behind(patient, own),
        *_wide(patient, own),
        *_cast_again(patient, own),
        *_loss(patient, own),
        *_update(patient, own),
        *_data(own),
    ]
    return sorted(findings or _unshrinkable(patient, own, baseline), key=lambda one: -(one.cost_pct or 0))


def _saves(config: Config) -> bool:
    """Tell whether the precision can save memory at all."""
    return config.precision.autocast or config.precision.parameters != "float32"


def _tell(patient: Patient, own: TracedMemory, baseline: TracedMemory) -> None:
    patient.facts |= {"memory/own_peak_bytes": own.peak_bytes, "memory/baseline_peak_bytes": baseline.peak_bytes}
    for name, memory in (("own", own), ("baseline", baseline)):
        patient.facts |= {f"memory/{name}_{category}_bytes": size for category, size in memory.peak.items()}


def _left_behind(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Find what modules or the task keep: memory that grows with each step, or tensors that nothing needs."""
    grows = own.growth_bytes >= _MIN_GROWTH_SHARE * own.peak_bytes
    stale = [held for held in own.held if held.is_stale]
    kept_bytes = max(sum(held.num_bytes for held in stale), *own.holders.values(), 0)
    if not grows and pct(kept_bytes, own.peak_bytes) < MIN_COST_PCT:
        return
    name, gain, changed = _best_drop(patient, own, grows=grows)
    if changed is None and not grows:
        return
    proof = compared(own, changed)
    if grows and changed is not None and proof is not None:
        mends = changed.growth_bytes < own.growth_bytes / 10
        proof = GrowthAgain(**vars(proof) | {"mends": mends}, growth_bytes=changed.growth_bytes)
    made_in = [*by_module(stale)][:MOST_CAUSES]
    owner, _, attribute = (name or "").rpartition(".")
    kind = GrowsFromStepToStep if grows else KeptByAModule
    yield kind(
        cost_pct=pct(own.growth_bytes if grows else gain, own.peak_bytes),
        modules=[owner] if name is not None and not name.startswith("task.") else made_in,
        place=place(stale),
        attribute=name,
        growth_bytes=own.growth_bytes,
        kept_bytes=kept_bytes,
        made_in=made_in,
        change=Change(code=f"self.{attribute} = None  # or .detach() what goes into it" if attribute else None),
        proof=proof,
    )


def _best_drop(patient: Patient, own: TracedMemory, *, grows: bool) -> tuple[str | None, int, TracedMemory | None]:
    """The attribute without whose tensors most is gained, the bytes, and the trace without them."""
    best: tuple[str | None, int, TracedMemory | None] = None, 0, None
    for name in sorted(own.holders, key=lambda one: -own.holders[one])[:MOST_CAUSES]:
        drop = partial(_drop, name)
        trial = tried(patient, after_forward=None if grows else drop, between_steps=drop)
        if trial is None:
            continue
        gain = own.growth_bytes - trial.growth_bytes if grows else own.peak_bytes - trial.peak_bytes
        if pct(gain, own.peak_bytes) >= (0 if grows else MIN_COST_PCT) and gain > best[1]:
            best = name, gain, trial
    return best


def _drop(name: str, trainer: Trainer) -> None:
    for holder in holders(trainer):
        if holder.name == name:
            holder.clear()


def _wide(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Activations that stay in float32, by what keeps them there."""
    precision = patient.config.precision
    for group in wide_activations(own, autocasts=precision.autocast)[:MOST_CAUSES]:
        if pct(group.num_bytes, own.peak_bytes) < _MIN_WIDE_PCT:
            return
        overrides: list[str] = []
        if group.cause == "autocast_off" and precision.fp32_modules:
            overrides = ["precision.fp32_modules=[]"]
            changed = tried(patient, with_precision(patient.config, fp32_modules=[]))
        else:
            changed = tried(patient, changes=dict.fromkeys(group.identities, CAUSES[group.cause][1]))
        if changed is None or saved_pct(own, changed) < MIN_COST_PCT:
            continue
        call, function = group.origin.call, group.origin.function
        assert call is not None
        assert function is not None
        code = next((changed.codes[one] for one in group.identities if one in changed.codes), None)
        partner = next((one.made for one in group.origin.sources if one.dtype == group.origin.dtype), None)
        yield CAUSES[group.cause][0](
            cost_pct=saved_pct(own, changed),
            modules=[*group.modules],
            operator=call.operator,
            place=function.identity.line,
            float32_bytes=group.num_bytes,
            peak_bytes=own.peak_bytes,
            function=function.identity.function,
            partner_by=None if partner is None else partner.kind,
            partner_name=None if partner is None else partner.name,
            change=Change(overrides=overrides, code=None if overrides else code),
            proof=compared(own, changed),
        )


def _cast_again(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Copies in half precision of the same tensor that are alive together."""
    groups: dict[int, list[Held]] = defaultdict(list)
    for held in own.held:
        if held.origin is not None and held.origin.kind == "autocast" and held.origin.sources:
            groups[id(held.origin.sources[0].made)].append(held)
    again = [sorted(group, key=lambda one: -one.num_bytes)[1:] for group in groups.values() if len(group) > 1]
    extra = [held for group in again for held in group]
    extra_bytes = sum(held.num_bytes for held in extra)
    if pct(extra_bytes, own.peak_bytes) < MIN_COST_PCT:
        return
    first = max(extra, key=lambda one: one.num_bytes)
    overrides: list[str] = []
    if patient.config.precision.cache_enabled:
        changed = tried(patient, shares_casts=True)
    else:
        overrides = ["precision.cache_enabled=true"]
        changed = tried(patient, with_precision(patient.config, cache_enabled=True))
    if changed is None or saved_pct(own, changed) < MIN_COST_PCT:
        return
    assert first.origin is not None
    source = first.origin.sources[0].made
    yield CastAgain(
        cost_pct=saved_pct(own, changed),
        modules=[*by_module(extra)],
        operator="aten._to_copy",
        place=place(extra),
        extra_bytes=extra_bytes,
        num_copies=len(extra) + len(again),
        num_tensors=len(again),
        source_by=source.kind,
        source_name=source.name,
        cache_enabled=patient.config.precision.cache_enabled,
        change=Change(overrides=overrides, code=None if overrides else _cast_once(first, source)),
        proof=compared(own, changed),
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
    num_bytes = sum(one.num_bytes for one in held)
    if num_bytes < _LOSS_SHARE * own.peak_bytes:
        return
    largest = max(held, key=lambda one: one.num_bytes)
    config, batch_size = patient.config, int(patient.config.data["batch_size"])
    proof = None
    overrides: list[str] = []
    parts = next((one for one in (4, 2) if batch_size % one == 0), None)
    if parts is not None:
        accum = config.trainer.grad_accum_steps * parts
        smaller = replace(
            config,
            data=config.data | {"batch_size": batch_size // parts},
            trainer=replace(config.trainer, grad_accum_steps=accum),
        )
        overrides = [f"data.batch_size={batch_size // parts}", f"trainer.grad_accum_steps={accum}"]
        proof = compared(own, tried(patient, smaller))
    assert largest.call is not None
    yield LargeLoss(
        cost_pct=pct(num_bytes, own.peak_bytes),
        operator=largest.call.operator,
        place=place(held),
        loss_bytes=num_bytes,
        num_tensors=sum(one.num_bytes >= largest.num_bytes / 4 for one in held),
        shape="x".join(map(str, largest.shape)),
        dtype="" if largest.origin is None else dtype_name(largest.origin.dtype),
        change=Change(overrides=overrides),
        proof=proof,
    )


def _update(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
    """Temporary tensors of the optimizer's step."""
    held = [one for one in own.held if one.call is not None and one.call.phase == "update" and not one.is_stale]
    held = [one for one in held if one.category not in _STATE]
    num_bytes = sum(one.num_bytes for one in held)
    if own.phase != "update" or num_bytes < _UPDATE_SHARE * own.peak_bytes:
        return
    optimizer, best = patient.config.optimizer, None
    for key, others in (("fused", ("foreach",)), ("foreach", ("fused",))):
        value = key == "fused"
        changed_optimizer = {name: one for name, one in copy.deepcopy(optimizer).items() if name not in others}
        changed = tried(patient, replace(patient.config, optimizer=changed_optimizer | {key: value}))
        if changed is not None and (best is None or changed.peak_bytes < best[1].peak_bytes):
            dropped = [f"~optimizer.{name}" for name in others if name in optimizer]
            best = [*dropped, f"{'' if key in optimizer else '+'}optimizer.{key}={str(value).lower()}"], changed
    largest = max(held, key=lambda one: one.num_bytes)
    gain = 0 if best is None else own.peak_bytes - best[1].peak_bytes
    assert largest.call is not None
    yield TemporariesOfTheUpdate(
        cost_pct=pct(gain or num_bytes, own.peak_bytes),
        operator=largest.call.operator,
        update_bytes=num_bytes,
        num_tensors=len(held),
        change=Change(overrides=best[0] if best is not None and gain > 0 else []),
        proof=None if best is None else compared(own, best[1]),
    )


def _data(own: TracedMemory) -> Iterator[MemoryFinding]:
    """A data set that is resident on an accelerator."""
    num_bytes = own.peak.get("data", 0)
    if num_bytes >= _DATA_SHARE * own.peak_bytes:
        cost_pct = pct(num_bytes, own.peak_bytes)
        yield ResidentData(cost_pct=cost_pct, data_bytes=num_bytes, peak_bytes=own.peak_bytes)


def _unshrinkable(patient: Patient, own: TracedMemory, baseline: TracedMemory) -> Iterator[MemoryFinding]:
    """Find a peak that is mostly what autocast leaves as it is, or that its copies of weights make larger."""
    if not patient.config.precision.autocast or own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes:
        return
    state_bytes = sum(own.peak.get(category, 0) for category in _STATE)
    copied = [held for held in own.held if held.category == "autocast_weights"]
    copies = sum(held.num_bytes for held in copied)
    has_copies = pct(copies, own.peak_bytes) >= MIN_COST_PCT
    if not has_copies and own.peak_bytes < MIN_PEAK_BYTES:
        return
    half = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[patient.config.precision.dtype]
    in_half = replace(patient.config, precision=PRECISION_MODES[half])
    kind = CopiesOfWeights if has_copies else MostlyState
    yield kind(
        cost_pct=pct(copies if has_copies else state_bytes, own.peak_bytes),
        modules=[*by_module(copied)] if has_copies else [],
        peak_bytes=own.peak_bytes,
        baseline_peak_bytes=baseline.peak_bytes,
        state_bytes=state_bytes,
        parameters_bytes=own.peak.get("parameters", 0),
        gradients_bytes=own.peak.get("gradients", 0),
        optimizer_state_bytes=own.peak.get("optimizer_state", 0),
        autocast_weights_bytes=copies,
        activations_bytes=own.peak.get("activations", 0),
        activations_saved_bytes=_activations(baseline) - _activations(own),
        larger_batch=_larger_batch(patient, own),
        change=Change(overrides=[f"precision={half}"]),
        proof=compared(own, tried(patient, in_half)),
    )


def _activations(memory: TracedMemory) -> int:
    return max(memory.peak.get("activations", 0), memory.end_of_forward.get("activations", 0))


def _larger_batch(patient: Patient, own: TracedMemory) -> PayingBatch:
    """The first of some larger batches with which autocast saves a good part, and what it saves there."""
    config, batch_size = patient.config, int(patient.config.data["batch_size"])
    grows = own.peak_bytes - sum(own.peak.get(category, 0) for category in _STATE)
    for factor in (4, 16, 64):
        if own.peak_bytes + factor * grows > _MOST_BYTES:
            break
        larger = replace(config, data=config.data | {"batch_size": factor * batch_size})
        arm = tried(patient, larger)
        full = tried(patient, replace(larger, precision=PRECISION_MODES["fp32"]))
        if arm is None or full is None:
            break
        if saved_pct(full, arm) >= _PAYING_PCT:
            return PayingBatch(paying_batch_size=factor * batch_size, paying_saved_pct=saved_pct(full, arm))
    return PayingBatch()
