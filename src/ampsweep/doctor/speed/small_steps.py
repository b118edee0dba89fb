"""Loops of tiny operators."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from ampsweep.analysis.step_limits import MIN_US_PER_OPERATOR_CPU
from ampsweep.doctor.hot_spots import HotSpot, unnumbered
from ampsweep.doctor.speed.measured_steps import MIN_COST_PCT, MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, total_ms

_MIN_REPEATED: Final = 8  # calls by a line in one module of functions with an operator that are a loop


class LaunchBound(SpeedFinding):
    template = "A loop{inside}{at} calls operators that are too small"
    seen = (
        "it calls {num_operators} operators in a step, most often {operator}; with what launches them they take "
        "{us_per_operator} us each, {loop_ms} of a step of {step_ms}",
    )
    remedy = "do the work of all its rounds in a single call, on larger tensors"
    num_operators: int
    us_per_operator: float
    loop_ms: float


def loops(measured: MeasuredSteps) -> Iterator[LaunchBound]:
    """Find loops of the user's code that call tiny operators, by kind of module, or by file outside the model."""
    forward, launch_ms = measured.calls("forward"), measured.launch_ms
    repeated = Counter(line for line, _ in {(_round(call), call.function) for call in forward})
    inside = {call.index for call in forward if call.place is not None and repeated[_round(call)] >= _MIN_REPEATED}
    groups: dict[str, list[TimedCall]] = defaultdict(list)
    for call in measured.calls():
        if (call if call.forward is None else call.forward).index in inside:
            groups[str(call.place).partition(",")[0] if call.module is None else unnumbered(call.module)].append(call)
    for calls in groups.values():
        if 1e3 * total_ms(calls) > MIN_US_PER_OPERATOR_CPU * len(calls):
            continue
        spot = HotSpot.of((call, call.ms + launch_ms) for call in calls)
        loop_ms = spot.cost
        if measured.moments.has_queue:  # the device computes what was queued before
            loop_ms = min(loop_ms, measured.idle_ms)
        if measured.share_pct(loop_ms) >= MIN_COST_PCT:
            own = HotSpot.of((call, call.ms + launch_ms) for call in calls if call.phase == "forward")
            facts: dict[str, Any] = {"operator": own.operator, "place": own.place, "loop_ms": loop_ms}
            facts |= {"num_operators": len(calls), "us_per_operator": 1e3 * loop_ms / len(calls)}
            yield measured.finding(LaunchBound, spot, cost_ms=loop_ms, **facts)


def _round(call: TimedCall) -> tuple[str | None, ...]:
    return call.module, call.place, call.operator
