"""A peak that autocast cannot shrink: parameters, gradients, optimizer state, and its own copies of weights."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.memory.findings import CopiesOfWeights, MemoryFinding, MostlyState, PayingBatch
from ampsweep.doctor.memory.traced import TracedMemory
from ampsweep.doctor.memory.trials import MIN_COST_PCT, by_module, compared, pct, saved_pct, tried
from ampsweep.doctor.patient import Patient
from ampsweep.memory_categories import MemoryCategory

_SHRUNK_SHARE: Final = 0.03
"""A peak that is this much smaller than in float32 has shrunk, if little: the training holds mostly what stays."""
_PAYING_PCT: Final = 20.0
"""A saving with which a larger batch pays."""
_MOST_BYTES: Final = 4 * 2**30
"""The largest peak that a trial with larger batches is expected to have."""
STATE: Final[tuple[MemoryCategory, ...]] = ("parameters", "gradients", "optimizer_state")


def unshrinkable(patient: Patient, own: TracedMemory, baseline: TracedMemory) -> Iterator[MemoryFinding]:
    """Find a peak that is mostly what autocast leaves as it is, or that its copies of weights make larger."""
    if not patient.config.precision.autocast or own.peak_bytes < (1 - _SHRUNK_SHARE) * baseline.peak_bytes:
        return
    state_bytes = sum(own.peak.get(category, 0) for category in STATE)
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
    grows = own.peak_bytes - sum(own.peak.get(category, 0) for category in STATE)
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
