"""The largest speedup that a precision can bring to a step, by Amdahl's law over its operators."""

from typing import Final

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.speed.device_rates import DeviceRates
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, by_origin

HALF_DTYPES: Final = ("float16", "bfloat16")


def speedup_bound(
    baseline: TimedStep, own: TimedStep, step_ms: float, precision: PrecisionConfig, rates: DeviceRates
) -> float:
    """The step's time in float32 over the least time that it can take in this precision.

    Every operator of forward and backward that works on floating-point numbers takes the time that the roofline leaves
    it in half precision, or the one that it has been seen to take, if that is less; under autocast the optimizer, and
    always the host's time between operators, stays as it is.

    Args:
        own: the same step in this precision.
        step_ms: time of the step in float32, which operators need not fill.
    """
    step_ms = max(step_ms, baseline.operators_ms)
    seen = by_origin(own.calls)
    gained_ms = 0.0
    for origin, calls in by_origin(baseline.calls).items():
        former_ms = sum(one.ms for one in calls)
        least_ms = sum(
            one.ms / max(rates.ratio_in(precision.dtype, one), 1.0) if could_be_half(one, precision) else one.ms
            for one in calls
        )
        if len(seen.get(origin, [])) == len(calls):
            least_ms = min(least_ms, sum(one.ms for one in seen[origin]))
        gained_ms += former_ms - least_ms
    return step_ms / (step_ms - min(gained_ms, baseline.operators_ms, 0.99 * step_ms))


def could_be_half(one: TimedCall, precision: PrecisionConfig) -> bool:
    """Tell whether a call of a float32 step may compute in half precision in this one."""
    if one.call.phase == "update" and precision.parameters not in HALF_DTYPES:
        return False
    return any(dtype.is_floating_point for dtype in (*one.call.inputs, *one.call.outputs))
