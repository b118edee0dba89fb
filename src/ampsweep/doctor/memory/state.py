"""A peak that autocast cannot shrink: parameters, gradients, optimizer state, and its own copies of weights."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.memory.traced import TracedMemory, trace_memory
from ampsweep.doctor.memory.trials import MIN_COST_PCT, by_module, compared, pct, tried
from ampsweep.doctor.patient import Patient
from ampsweep.memory_categories import MemoryCategory
from ampsweep.record.diagnosis import Change, DoctorFinding

_SHRUNK_SHARE: Final = 0.03
"""A peak that is this much smaller than in float32 has shrunk, if little: the training holds mostly what stays."""
_PAYING_PCT: Final = 20.0
"""A saving with which a larger batch pays."""
_MOST_BYTES: Final = 4 * 2**30
"""The largest peak that a trial with larger batches is expected to have."""
STATE: Final[tuple[MemoryCategory, ...]] = ("parameters", "gradients", "optimizer_state")


def unshrinkable(patient: Patient, own: TracedMemory, baseline: TracedMemory) -> Iterator[DoctorFinding]:
    """Find a peak that is mostly what autocast leaves as it is, or that its copies of weights make larger."""
    if not patient.config.precision.autocast or own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes:
        return
    state_bytes = sum(own.peak.get(category, 0) for category in STATE)
    copied = [held for held in own.held if held.category == "autocast_weights"]
    copies = sum(held.num_bytes for held in copied)
    has_copies = pct(copies, own.peak_bytes) >= MIN_COST_PCT
    if not has_copies and own.peak_bytes < MIN_PEAK_BYTES:
        return
    by_name = {category: own.peak.get(category, 0) for category in STATE}
    half = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[patient.config.precision.dtype]
    in_half = replace(patient.config, precision=PRECISION_MODES[half])
    changed = tried(patient, partial(trace_memory, patient, in_half, makers=False))
    yield DoctorFinding(
        complaint="memory",
        kind="copies_of_weights" if has_copies else "mostly_state",
        cost_pct=pct(copies if has_copies else state_bytes, own.peak_bytes),
        modules=[*by_module(copied)] if has_copies else [],
        evidence={
            "peak_bytes": own.peak_bytes,
            "baseline_peak_bytes": baseline.peak_bytes,
            "state_bytes": state_bytes,
            **{f"{category}_bytes": size for category, size in by_name.items()},
            "autocast_weights_bytes": copies,
            "activations_bytes": own.peak.get("activations", 0),
            "activations_saved_bytes": _activations(baseline) - _activations(own),
            **_larger_batch(patient, own),
        },
        change=Change(overrides=[f"precision={half}"]),
        proof={} if changed is None else compared(own, changed),
    )


def _activations(memory: TracedMemory) -> int:
    return max(memory.peak.get("activations", 0), memory.end_of_forward.get("activations", 0))


def _larger_batch(patient: Patient, own: TracedMemory) -> dict[str, object]:
    """The first of some larger batches with which autocast saves a good part, and what it saves there."""
    config, batch_size = patient.config, int(patient.config.data["batch_size"])
    grows = own.peak_bytes - sum(own.peak.get(category, 0) for category in STATE)
    for factor in (4, 16, 64):
        if own.peak_bytes + factor * grows > _MOST_BYTES:
            break
        larger = replace(config, data=config.data | {"batch_size": factor * batch_size})
        arm = tried(patient, partial(trace_memory, patient, larger, makers=False))
        in_float32 = replace(larger, precision=PRECISION_MODES["fp32"])
        full = tried(patient, partial(trace_memory, patient, in_float32, makers=False))
        if arm is None or full is None:
            break
        saved_pct = pct(full.peak_bytes - arm.peak_bytes, full.peak_bytes)
        if saved_pct >= _PAYING_PCT:
            return {"paying_batch_size": factor * batch_size, "paying_saved_pct": saved_pct}
    return {}
