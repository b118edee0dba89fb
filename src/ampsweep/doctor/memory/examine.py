"""The examination of a training whose memory did not shrink."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config
from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, where
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.half_edits import (
    autocast_on_at,
    cast_once,
    codes_at,
    edit_at,
    numbers_for,
    to_half,
    without_cast,
)
from ampsweep.doctor.hot_spots import HotSpot
from ampsweep.doctor.loss.fault import LossCase
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.memory import findings as kinds
from ampsweep.doctor.memory.findings import MemoryFinding
from ampsweep.doctor.memory.traced_memory import STATE, Held, TracedMemory, trace_memory
from ampsweep.doctor.memory.wide_activations import WideActivations, wide_activations
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import CallIdentity
from ampsweep.text import num_bytes as num_bytes_text
from ampsweep.text import one_line
from ampsweep.user_code import CodeLine

_MIN_COST_PCT: Final = 8.0  # the smallest share of the peak that is a finding
_MOST_CAUSES: Final = 4  # the most causes of one kind that are tried or reported
_SHRUNK_SHARE: Final = 0.03  # a peak that is this much smaller than in float32 has shrunk; below, it is mostly state
_MOST_TRIALS: Final = 8  # edits of what is kept from step to step
_MANY_STEPS: Final = 1000  # in which a leak shows
_MIN_WIDE_PCT: Final = 12.0  # smallest share of the peak in float32 activations that is tried: half of it may be saved
_MOSTLY_PCT: Final = 50.0  # the least share of the peak that is mostly state
_LEAST_BYTES: Final = 2**20  # the smallest peak of which activations are examined
_LITTLE_SAVED: Final = 0.75  # the share of float32's peak from which its loss may be why
_MANY_CLASSES: Final = 1024
_MOST_PARTS: Final = 5  # kinds of tensors of a loss that are listed
_LOSS_PCT: Final = 35.0  # the least reported share of the peak of the loss's own tensors


def examine_memory(examined: ExaminedTraining) -> list[MemoryFinding]:
    """Find what keeps the peak from being smaller than in float32; NotExaminedError: a step cannot be traced."""
    precision = examined.config.precision
    if examined.is_baseline or not (precision.autocast or precision.parameters != "float32"):
        return []
    try:
        own = trace_memory(examined)
        baseline = trace_memory(examined, replace(examined.config, precision=PRECISION_MODES["fp32"]), makers=False)
    except Exception as error:  # the model's own code may raise anything
        raise NotExaminedError(f"its step cannot be traced: {one_line(error)}") from error
    for name, memory in (("own", own), ("baseline", baseline)):
        examined.facts[f"memory/{name}_peak_bytes"] = memory.peak_bytes
        examined.facts |= {f"memory/{name}_{category}_bytes": size for category, size in memory.peak.items()}
    found = [*_growth(examined, own)]
    if own.peak_bytes >= _LEAST_BYTES:
        found += [*_wide(examined, own), *_cast_again(examined, own)]
        found += _loss(examined, own) if own.peak_bytes > _LITTLE_SAVED * baseline.peak_bytes else []
    return sorted(found or _unshrinkable(examined, own, baseline), key=lambda finding: -(finding.cost_pct or 0))


def _try(examined: ExaminedTraining, config: Config | None = None, edit: CodeEdit | None = None) -> TracedMemory | None:
    """Trace the training with a change; None if time is up, or if it fails with that or learns worse."""
    try:
        variant, case = Variant(edit=edit), LossCase(examined)
        with variant.edited():
            changed = trace_memory(examined, config, makers=False)
        is_worse = edit is not None and case.fault is None and case.has_fault(variant.steps(examined, case.num_steps))
    except (Exception, OutOfTimeError):  # noqa: BLE001  a change may not suit the training in any way
        return None
    return None if is_worse else changed


def _mended(
    examined: ExaminedTraining, own: TracedMemory, overrides: list[str], edit: CodeEdit | None = None, **changed: Any
) -> dict[str, Any]:
    """What a finding says of a change by overrides, which set these parts of the config, or of an edit; empty if it
    saves too little, or there is none."""
    if not (overrides or edit):
        return {}
    traced = _try(examined, replace(examined.config, **changed), edit)
    if traced is None or own.saved_pct(traced) < _MIN_COST_PCT:
        return {}
    proof = kinds.TracedAgain(mends=True, peak_bytes_before=own.peak_bytes, peak_bytes_after=traced.peak_bytes)
    change = Change(overrides=overrides, code=None if edit is None else edit.patch)
    return {"cost_pct": own.saved_pct(traced), "change": change, "proof": proof}


def _spot(allocations: Iterable[Held]) -> HotSpot[Call]:
    return HotSpot.of((held.call, held.num_bytes) for held in allocations if held.call is not None)


def _size(allocations: Iterable[Held]) -> int:
    return sum(held.num_bytes for held in allocations)


def _growth(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    later_bytes = _MANY_STEPS * own.growth_bytes
    cost_pct = 100 * later_bytes / (own.peak_bytes + later_bytes)
    if cost_pct < _MIN_COST_PCT:
        return
    made = _spot(held for held in own.held if held.is_stale)
    name, edit, proof = None, None, None
    for holder, tried in islice(numbers_for(made.place) if isinstance(made.place, CodeLine) else (), _MOST_TRIALS):
        trial = _try(examined, edit=tried)
        if trial is not None and trial.growth_bytes < (own.growth_bytes / 2 if proof is None else proof.growth_bytes):
            name, edit, proof = holder, tried, kinds.GrowthAgain(mends=True, growth_bytes=trial.growth_bytes)
    yield kinds.GrowsFromStepToStep(
        cost_pct=cost_pct,
        modules=made.modules[:_MOST_CAUSES],
        place=made.place if edit is None else edit.place,
        attribute=name,
        growth_bytes=own.growth_bytes,
        num_steps=_MANY_STEPS,
        change=Change(code=None if edit is None else edit.patch),
        proof=proof,
    )


def _wide(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    precision = examined.config.precision
    for group in wide_activations(own, autocasts=precision.autocast)[:_MOST_CAUSES]:
        call, function = group.origin.call, group.origin.function
        assert call is not None
        assert function is not None
        if own.pct(group.num_bytes) < _MIN_WIDE_PCT:
            return
        edit = None
        if group.kind is kinds.Float32AutocastOff and precision.fp32_modules:
            overrides = ["precision.fp32_modules=[]"]
            mended = _mended(examined, own, overrides, precision=replace(precision, fp32_modules=[]))
        else:
            edit = _edit_of(examined, group, function.identity)
            mended = _mended(examined, own, [], edit)
        partner = next((source.made for source in group.origin.sources if source.dtype == group.origin.dtype), None)
        if mended:
            yield group.kind(
                modules=group.modules,
                operator=call.operator,
                place=function.identity.line if edit is None else edit.place,
                float32_bytes=group.num_bytes,
                peak_bytes=own.peak_bytes,
                function=function.identity.function,
                partner_by=None if partner is None else partner.kind,
                partner_name=None if partner is None else partner.name,
                **mended,
            )


def _edit_of(examined: ExaminedTraining, group: WideActivations, identity: CallIdentity) -> CodeEdit | None:
    if group.kind is kinds.Float32AutocastOff:
        return autocast_on_at(examined, [identity.line]).get(str(identity.line))
    return edit_at(examined, identity, without_cast if group.kind is kinds.Float32Cast else to_half)


def _cast_again(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    precision, groups = examined.config.precision, defaultdict[TensorOrigin, list[Held]](list)
    for held in own.held:
        if held.origin is not None and held.origin.kind == "autocast" and held.origin.sources:
            groups[held.origin.sources[0].made].append(held)
    copies = sorted((group for group in groups.values() if len(group) > 1), key=_size, reverse=True)
    extra = [held for group in copies for held in sorted(group, key=lambda held: -held.num_bytes)[1:]]
    if own.pct(_size(extra)) < _MIN_COST_PCT:
        return
    if precision.cache_enabled:
        origins = [held.origin for held in copies[0] if held.origin is not None]
        identities = dict.fromkeys(origin.function.identity for origin in origins if origin.function is not None)
        edit = cast_once(codes_at(examined, [*identities]), origins[0].dtype)
        mended = _mended(examined, own, [], edit)
    else:
        overrides = ["precision.cache_enabled=true"]
        mended = _mended(examined, own, overrides, precision=replace(precision, cache_enabled=True))
    spot = _spot(extra)
    if mended:
        yield kinds.CastAgain(
            modules=spot.modules or [""],
            operator=spot.operator,
            place=spot.place,
            extra_bytes=_size(extra),
            num_copies=len(extra) + len(copies),
            num_tensors=len(copies),
            **mended,
        )


def _loss(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    """A loss over many classes: the logits and what has their size, made in the model or outside."""
    made = [held for held in own.held if held.call is not None and held.category in ("activations", "temporary")]
    largest = max(filter(_is_of_loss, made), key=lambda held: held.num_bytes, default=None)
    if largest is None or largest.call is None:
        return
    size = math.prod(largest.shape) if largest.shape[-1:] >= (_MANY_CLASSES,) else None  # a small one others have, too
    of_loss = [held for held in made if _is_outside(held) or math.prod(held.shape) == size]
    num_bytes = _size(of_loss)
    if own.pct(num_bytes) < _LOSS_PCT or 2 * _size(filter(_is_of_loss, of_loss)) < num_bytes:
        return
    config, batch_size = examined.config, int(examined.config.data["batch_size"])
    mended = dict[str, Any]()
    if divisor := next((divisor for divisor in (4, 2) if batch_size % divisor == 0), None):
        smaller, accum = batch_size // divisor, config.trainer.grad_accum_steps * divisor
        data, trainer = config.data | {"batch_size": smaller}, replace(config.trainer, grad_accum_steps=accum)
        overrides = [f"data.batch_size={smaller}", f"trainer.grad_accum_steps={accum}"]
        mended = _mended(examined, own, overrides, data=data, trainer=trainer)
    parts = Counter[str]()
    for held in of_loss:
        if held.call is not None and held.origin is not None:
            place = "" if held.call.place is None else f" ({held.call.place})"
            parts[f"{held.call.operator}{place} in {dtype_name(held.origin.dtype)}"] += held.num_bytes
    largest_parts = parts.most_common(_MOST_PARTS)
    facts: dict[str, Any] = where(largest.call) | mended
    yield kinds.LargeLoss(
        **facts | {"cost_pct": own.pct(num_bytes)},
        loss_bytes=num_bytes,
        peak_bytes=own.peak_bytes,
        shape="x".join(map(str, largest.shape)),
        tensors=[f"{part}: {num_bytes_text(size)}" for part, size in largest_parts if size >= num_bytes / 100],
    )


def _is_outside(held: Held) -> bool:
    return held.call is not None and held.call.module is None


def _is_of_loss(held: Held) -> bool:
    """Return True for what is made outside the model or, of many classes, by the model's own code."""
    is_of_model = held.call is not None and held.call.module == ""
    return _is_outside(held) or (is_of_model and bool(held.shape) and held.shape[-1] >= _MANY_CLASSES)


def _unshrinkable(examined: ExaminedTraining, own: TracedMemory, baseline: TracedMemory) -> Iterator[MemoryFinding]:
    """A peak that is mostly state, which autocast does not shrink, and autocast's copies of weights."""
    if not examined.config.precision.autocast or own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes:
        return
    share_pct = own.pct(own.peak_of(*STATE, "autocast_weights"))
    if own.peak_bytes < MIN_PEAK_BYTES or share_pct < _MOSTLY_PCT:
        return
    half = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[examined.config.precision.dtype]
    mended = _mended(examined, own, [f"precision={half}"], precision=PRECISION_MODES[half])
    yield kinds.MostlyState(
        **mended | {"cost_pct": share_pct},
        peak_bytes=own.peak_bytes,
        baseline_peak_bytes=baseline.peak_bytes,
        parameters_bytes=own.peak_of("parameters"),
        gradients_bytes=own.peak_of("gradients"),
        optimizer_state_bytes=own.peak_of("optimizer_state"),
        autocast_weights_bytes=own.peak_of("autocast_weights"),
    )
