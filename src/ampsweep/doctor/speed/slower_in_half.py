"""Operators that take longer in half precision than in float32, matched call by call."""

from collections.abc import Iterable
from typing import Final

from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall, by_origin
from ampsweep.record.diagnosis import Finding

_MIN_RATIO: Final = 1.25
"""Time in half precision over that in float32 from which calls count as slower."""
_MIN_OF_A_GAIN_PCT: Final = 30.0
"""Share of a step that they cost at least where the step as a whole is faster: kernels differ on every device."""


def slower_operators(measured: MeasuredSteps) -> list[Finding]:
    """Find operators that half precision makes slower on this device."""
    baseline = measured.baseline
    if baseline is None:
        return []
    own, former = by_origin(measured.step.calls), by_origin(baseline.step.calls)
    costs = []
    for origin, calls in own.items():
        matched = former.get(origin, [])
        own_ms, former_ms = sum(one.ms for one in calls), sum(one.ms for one in matched)
        if len(matched) != len(calls) or not any(one.is_half for one in calls) or own_ms < _MIN_RATIO * former_ms:
            continue
        costs += [(one, (own_ms - former_ms) * (one.ms / own_ms)) for one in calls]
    least_pct = MIN_COST_PCT if measured.gains_little else _MIN_OF_A_GAIN_PCT
    return [_finding(measured, spot) for spot in spots(costs) if measured.share_pct(spot.ms) >= least_pct]


def _finding(measured: MeasuredSteps, spot: Spot) -> Finding:
    own_ms = sum(one.ms for one in spot.calls)
    return measured.finding(
        "slower_operators",
        spot,
        {
            "own_ms": own_ms,
            "float32_ms": own_ms - spot.ms,
            "dtype": measured.training.precision.dtype,
            "num_calls": len(spot.calls),
        },
        _fp32_override(measured, [name for name in spot.innermost if name]),
    )


def _fp32_override(measured: MeasuredSteps, names: list[str]) -> list[str]:
    """The override that keeps some modules in float32; none where they would lose more by that than they gain."""
    precision, baseline = measured.training.precision, measured.baseline
    if not names or not precision.autocast or baseline is None:
        return []
    own_ms, former_ms = _within(measured.step.calls, names), _within(baseline.step.calls, names)
    if own_ms <= former_ms:
        return []
    patterns = [*precision.fp32_modules, *names]
    return [f"precision.fp32_modules=[{','.join(patterns)}]"]


def _within(calls: Iterable[TimedCall], names: list[str]) -> float:
    """The time of all operators within some modules."""
    return sum(one.ms for one in calls if one.call.module is not None and _is_within(one.call.module, names))


def _is_within(module: str, names: list[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)
