"""Tensors that modules or the task keep although the step is over, or needs them no more."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.memory.findings import GrowsFromStepToStep, GrowthAgain, KeptByAModule, MemoryFinding
from ampsweep.doctor.memory.traced import TracedMemory, holders
from ampsweep.doctor.memory.trials import MIN_COST_PCT, MOST_CAUSES, by_module, compared, pct, place, tried
from ampsweep.doctor.patient import Patient
from ampsweep.training.trainer import Trainer

_MIN_GROWTH_SHARE: Final = 0.01


def left_behind(patient: Patient, own: TracedMemory) -> Iterator[MemoryFinding]:
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
    """Drop what an attribute holds."""
    for holder in holders(trainer):
        if holder.name == name:
            holder.clear()
