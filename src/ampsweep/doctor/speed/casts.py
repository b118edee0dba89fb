"""Copies in another dtype: weights that are cast several times, activations that are cast to float32 and back."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, total_ms
from ampsweep.doctor.spot import Spot, spots

_MIN_REPEATED_PCT: Final = 5.0
"""Share of a step from which repeated casts of weights are reported: none of them is needed."""
_MIN_TO_AND_FRO_PCT: Final = 6.0
"""The same for casts to float32 and back, some of which autocast needs."""


class NeedlessCasts(SpeedFinding):
    """Casts that could be left out: a base of classes."""

    ms: float
    bytes_pct: float
    """Bytes that they move over those of all operators."""
    num_casts: int


class RepeatedWeightCasts(NeedlessCasts):
    template = "Weights{inside} are cast to half precision again and again"
    seen = (
        "{parameter} is cast {num_casts} times in a step, where {num_needed} would do",
        "casts that are not needed take {ms} of a step of {step_ms}",
    )
    remedy = "cast a weight once and use the copy, or leave casts to autocast, which keeps its copies"
    remedy_by_overrides = "have autocast keep its copies"
    parameter: str
    num_needed: int


class ActivationCasts(NeedlessCasts):
    template = "Activations{inside}{at} are cast to float32 and back"
    seen = (
        "such casts and those of their gradients take {ms} of a step of {step_ms} and move {bytes_pct} of its bytes",
    )
    remedy = "take out the casts, or keep in one dtype what lies between them"


def casts(measured: MeasuredSteps) -> list[NeedlessCasts]:
    """Find casts that cost a good part of the step and could be left out."""
    all_casts = [one for one in measured.step.of_phases("forward", "backward") if one.is_cast]
    measured.patient.facts["speed/casts_pct"] = measured.share_pct(total_ms(all_casts))
    measured.patient.facts["speed/casts_bytes_pct"] = _bytes_pct(all_casts, measured.step)
    times = _with_backward(measured.step.calls)
    return [*_repeated(measured, times), *_to_and_fro(measured, times)]


def _repeated(measured: MeasuredSteps, times: dict[TimedCall, float]) -> Iterator[RepeatedWeightCasts]:
    """Weights that are cast more often than once for each micro-batch."""
    config = measured.patient.config
    needed = measured.training.num_micro_batches
    if config.trainer.activation_checkpointing:  # each forward pass within a checkpoint casts anew
        needed *= 2
    counts = Counter(one.parameter for one in times if one.parameter is not None)
    needless = [
        (one, ms * (1 - needed / counts[one.parameter]))
        for one, ms in times.items()
        if one.parameter is not None and counts[one.parameter] > needed
    ]
    overrides = [] if config.precision.cache_enabled else ["precision.cache_enabled=true"]
    for spot in spots(needless):
        if measured.share_pct(spot.cost) >= _MIN_REPEATED_PCT:
            name = max(spot.calls, key=lambda one: times[one]).parameter or ""
            facts = _facts(measured, spot) | {"parameter": name, "num_casts": counts[name], "num_needed": needed}
            yield measured.finding(RepeatedWeightCasts, spot, overrides, **facts)


def _to_and_fro(measured: MeasuredSteps, times: dict[TimedCall, float]) -> Iterator[ActivationCasts]:
    """Activations that are cast to float32 and, after some operators, back."""
    by_index = {one.index: one for one in times}
    costs: dict[TimedCall, float] = defaultdict(float)
    for one, ms in times.items():
        up = by_index.get(one.cast_up) if one.cast_up is not None else None
        if up is not None and up.parameter is None:
            costs[up] += ms
    for spot in spots((up, times[up] + ms) for up, ms in costs.items()):
        if measured.share_pct(spot.cost) >= _MIN_TO_AND_FRO_PCT:
            yield measured.finding(ActivationCasts, spot, **_facts(measured, spot))


def _with_backward(calls: Iterable[TimedCall]) -> dict[TimedCall, float]:
    """The casts of forward between float32 and half precision, each with its ms and those of its backward."""
    forward: dict[int, TimedCall] = {}
    times: dict[TimedCall, float] = {}
    for one in calls:
        if one.is_cast and one.phase == "forward" and {one.inputs[0].itemsize, one.outputs[0].itemsize} == {2, 4}:
            forward[one.index], times[one] = one, one.ms
        elif one.is_cast and one.forward is not None and one.forward.index in forward:
            times[forward[one.forward.index]] += one.ms
    return times


def _facts(measured: MeasuredSteps, spot: Spot[TimedCall]) -> dict[str, Any]:
    return {"ms": spot.cost, "bytes_pct": _bytes_pct(spot.calls, measured.step), "num_casts": len(spot.calls)}


def _bytes_pct(some: Iterable[TimedCall], step: TimedStep) -> float:
    return 100 * sum(one.num_bytes for one in some) / max(sum(one.num_bytes for one in step.calls), 1)
