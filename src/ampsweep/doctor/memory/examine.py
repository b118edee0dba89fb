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
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.half_edits import autocast_on_at, cast_once, codes_at, edit_at, numbers_for, to_half, without_cast
from ampsweep.doctor.hot_spots import HotSpot
from ampsweep.doctor.loss.fault import LossCase
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.memory import findings as kinds
from ampsweep.doctor.memory.findings import MemoryFinding
from ampsweep.doctor.memory.traced_memory import STATE, Held, TracedMemory, trace_memory
from ampsweep.doctor.memory.wide_activations import wide_activations
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.calls import Call
from ampsweep.text import num_bytes
from ampsweep.user_code import CodeLine

_MIN_COST_PCT: Final = 8.0  # the smallest share of the peak that is a finding
_MOST_CAUSES: Final = 4  # the most causes of one kind that are tried or reported
_SHRUNK_SHARE: Final = 0.03  # a peak that is this much smaller than in float32 has shrunk; below, it is mostly state
_MOST_TRIALS: Final = 8  # edits of what is kept from step to step
_MANY_STEPS: Final = 1000  # in which a leak shows
_MOSTLY_PCT: Final = 50.0  # the least share of the peak that is mostly state
_LEAST_BYTES: Final = 2**20  # the smallest peak of which activations are examined
_LITTLE_SAVED: Final = 0.75  # the share of float32's peak from which its loss may be why
_MANY_CLASSES: Final = 1024
_LOSS_PCT: Final = 35.0  # the least reported share of the peak of the loss's own tensors


def examine_memory(examined: ExaminedTraining) -> list[MemoryFinding]:
    """Find what keeps the peak from being smaller than in float32."""
    precision = examined.config.precision
    if not precision.autocast and precision.parameters == "float32":
        return []
    own = trace_memory(examined)
    baseline = trace_memory(examined, replace(examined.config, precision=PRECISION_MODES["fp32"]), makers=False)
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
    traced = _try(examined, replace(examined.config, **changed), edit) if overrides or edit else None
    if traced is None or own.saved_pct(traced) < _MIN_COST_PCT:
        return {}
    return {
        "cost_pct": own.saved_pct(traced),
        "change": Change(overrides=overrides, code=None if edit is None else edit.patch),
        "proof": kinds.TracedAgain(mends=True, bytes_before=own.peak_bytes, bytes_after=traced.peak_bytes),
    }


def _spot(allocations: Iterable[Held]) -> HotSpot[Call]:
    return HotSpot.of((held.call, held.num_bytes) for held in allocations if held.call is not None)


def _size(allocations: Iterable[Held]) -> int:
    return sum(held.num_bytes for held in allocations)


def _growth(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    later_bytes, least_bytes = _MANY_STEPS * own.growth_bytes, own.growth_bytes // 2
    cost_pct = 100 * later_bytes / (own.peak_bytes + later_bytes)
    if cost_pct < _MIN_COST_PCT:
        return
    made = _spot(held for held in own.held if held.is_stale)
    known: dict[str, Any] = {"holder": "something", "place": made.place, "modules": made.modules[:_MOST_CAUSES]}
    for holder, edit in islice(numbers_for(made.place) if isinstance(made.place, CodeLine) else (), _MOST_TRIALS):
        trial = _try(examined, edit=edit)
        if trial is not None and trial.growth_bytes < least_bytes:
            least_bytes = trial.growth_bytes
            known |= {"holder": holder, "place": edit.place, "change": Change(code=edit.patch)}
            sizes = {"bytes_before": own.growth_bytes, "bytes_after": least_bytes}
            known["proof"] = kinds.TracedAgain(mends=True, what="a step leaves behind", **sizes)
    known |= {"growth_bytes": own.growth_bytes, "num_steps": _MANY_STEPS}
    yield kinds.GrowsFromStepToStep(cost_pct=cost_pct, **known)


def _wide(examined: ExaminedTraining, own: TracedMemory) -> Iterator[MemoryFinding]:
    precision = examined.config.precision
    for group in wide_activations(own, autocasts=precision.autocast)[:_MOST_CAUSES]:
        if own.pct(group.spot.cost) < _MIN_COST_PCT:
            return
        identity, edit, overrides, changed = group.identity, None, list[str](), precision
        if group.kind is not kinds.Float32AutocastOff:
            edit = edit_at(examined, identity, without_cast if group.kind is kinds.Float32Cast else to_half)
        elif precision.fp32_modules:
            overrides, changed = ["precision.fp32_modules=[]"], replace(precision, fp32_modules=[])
        else:
            edit = autocast_on_at(examined, [identity.line]).get(str(identity.line))
        if mended := _mended(examined, own, overrides, edit, precision=changed):
            yield group.kind(
                modules=group.modules,
                operator=group.spot.operator,
                place=identity.line if edit is None else edit.place,
                float32_bytes=int(group.spot.cost),
                peak_bytes=own.peak_bytes,
                function=identity.function,
                partner=group.partner,
                **mended,
            )


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
        mended = _mended(examined, own, [], cast_once(codes_at(examined, [*identities]), origins[0].dtype))
    else:
        overrides = ["precision.cache_enabled=true"]
        mended = _mended(examined, own, overrides, precision=replace(precision, cache_enabled=True))
    if mended:
        spot = _spot(extra)
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
    made = {held: held.call for held in own.held if held.call and held.category in ("activations", "temporary")}
    outside = {held for held, call in made.items() if call.module is None}
    many = {held for held in made if held.shape[-1:] >= (_MANY_CLASSES,)}
    surely = outside | {held for held in many if made[held].module == ""}  # of many classes, the model's own code, too
    if not surely:
        return
    largest = max(surely, key=lambda held: held.num_bytes)
    size = math.prod(largest.shape) if largest in many else None  # a small one others have, too
    of_loss = [held for held in made if held in outside or math.prod(held.shape) == size]
    loss_bytes, config, batch_size = _size(of_loss), examined.config, int(examined.config.data["batch_size"])
    if own.pct(loss_bytes) < _LOSS_PCT or 2 * _size(surely.intersection(of_loss)) < loss_bytes:
        return
    mended = dict[str, Any]()
    if divisor := next((divisor for divisor in (4, 2) if batch_size % divisor == 0), None):
        smaller, accum = batch_size // divisor, config.trainer.grad_accum_steps * divisor
        data, trainer = config.data | {"batch_size": smaller}, replace(config.trainer, grad_accum_steps=accum)
        overrides = [f"data.batch_size={smaller}", f"trainer.grad_accum_steps={accum}"]
        mended = _mended(examined, own, overrides, data=data, trainer=trainer)
    parts = Counter[str]()
    for held in of_loss:
        parts[f"{made[held].operator} ({made[held].place or made[held].phase})"] += held.num_bytes
    yield kinds.LargeLoss(
        **where(made[largest]) | mended | {"cost_pct": own.pct(loss_bytes)},
        loss_bytes=loss_bytes,
        peak_bytes=own.peak_bytes,
        shape="x".join(map(str, largest.shape)),
        tensors=[f"{part}: {num_bytes(size)}" for part, size in parts.most_common(_MOST_CAUSES)],
    )


def _unshrinkable(examined: ExaminedTraining, own: TracedMemory, baseline: TracedMemory) -> Iterator[MemoryFinding]:
    """A peak that is mostly state, which autocast does not shrink, and autocast's copies of weights."""
    precision, has_shrunk = examined.config.precision, own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes
    state = {category: size for category, size in own.peak.items() if category in (*STATE, "autocast_weights")}
    cost_pct = own.pct(sum(state.values()))
    if not precision.autocast or has_shrunk or own.peak_bytes < MIN_PEAK_BYTES or cost_pct < _MOSTLY_PCT:
        return
    half = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[precision.dtype]
    yield kinds.MostlyState(
        **_mended(examined, own, [f"precision={half}"], precision=PRECISION_MODES[half]) | {"cost_pct": cost_pct},
        peak_bytes=own.peak_bytes,
        baseline_peak_bytes=baseline.peak_bytes,
        state=[f"{category.replace('_', ' ')} {num_bytes(size)}" for category, size in state.items()],
    )
