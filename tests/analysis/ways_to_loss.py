"""Runs with curves of a loss, so that the time and energy to a loss are known."""

import numpy as np
from synthetic_records import Entry, run

from ampsweep.analysis.time_to_loss import LossCurve

EVALUATIONS = 20


def ways(
    arm: str, step_ms: list[float], *, seconds: list[float], final: float = 2.0, watts: float | None = None, **more
) -> tuple[list[Entry], dict]:
    """Runs of seeds 0, 1, ... whose validation loss falls on a straight line from 4 to `final`, in so many seconds."""
    entries, curves = [], {}
    for seed, (step, whole) in enumerate(zip(step_ms, seconds, strict=True)):
        moments = np.linspace(whole / EVALUATIONS, whole, EVALUATIONS)
        losses = np.linspace(4.0, final + 0.001 * seed, EVALUATIONS)
        entry = run(arm, seed, step_ms=step, val_loss=float(losses[-1]), **more)
        entries.append(entry)
        joules = None if watts is None else watts * moments
        curves[entry[0]] = {"val/loss": LossCurve(losses=losses, seconds=moments, joules=joules)}
    return entries, curves
