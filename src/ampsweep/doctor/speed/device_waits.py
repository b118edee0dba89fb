"""Operators in which the host waits for the device: a number that is read, a tensor that is copied to the host."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from ampsweep.doctor.speed.measured_steps import MeasuredSteps, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.own_code_place import is_own_source
from ampsweep.record.diagnosis import Finding

_MIN_COST_PCT: Final = 5.0


def synchronizations(measured: MeasuredSteps) -> list[Finding]:
    """Find the lines at which the host waits for the device; on a CPU, where they cost nothing, they are facts only."""
    waits = host_waits(measured.step.of_phases("forward", "backward"))
    measured.patient.facts["speed/synchronizations"] = [
        f"{spot.place or spot.modules[0]}: {spot.operator} ({len(spot.calls)} in a step)"
        for spot in waits
        if spot.place is not None or spot.modules
    ]
    if not measured.moments.has_queue:
        return []
    warned = _warned_lines(measured) if measured.patient.device.type == "cuda" else []
    idle_ms = max(measured.step_ms - measured.step.operators_ms, 0.0)
    if measured.share_pct(idle_ms) < _MIN_COST_PCT or not (waits or warned):
        return []
    place = waits[0].place if waits else warned[0]
    return [
        Finding(
            complaint="speed",
            kind="synchronizations",
            cost_pct=measured.share_pct(idle_ms),
            modules=waits[0].modules if waits else [],
            operator=waits[0].operator if waits else None,
            place=place,
            evidence={
                "num_waits": max(sum(len(spot.calls) for spot in waits), len(warned)),
                "idle_ms": idle_ms,
                "step_ms": measured.step_ms,
                "lines": warned,
            },
        )
    ]


def host_waits(calls: Sequence[TimedCall]) -> list[Spot]:
    """The spots at which the host reads what a device computes, the most frequent one first."""
    return spots((one, 1.0) for one in calls if one.reads_device)


def _warned_lines(measured: MeasuredSteps) -> list[str]:
    """The lines of the user's that torch warns of as synchronizing, the most frequent one first."""
    former = torch.cuda.get_sync_debug_mode()
    measured.moments.wait()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            measured.training.step()
        finally:
            torch.cuda.set_sync_debug_mode(former)
    lines = Counter(
        f"{Path(one.filename).name}, line {one.lineno}" for one in said if is_own_source(Path(one.filename))
    )
    return [line for line, _ in lines.most_common()]
