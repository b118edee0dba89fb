"""Copies in another dtype: weights that are cast several times, activations that are cast to and fro."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from ampsweep.doctor.speed.measured_steps import Kind, MeasuredSteps, SpeedFinding, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall

_MIN_REPEATED_PCT: Final = 5.0
"""Share of a step from which repeated casts of weights are told: none of them is needed."""
_MIN_TO_AND_FRO_PCT: Final = 6.0
"""The same of casts to and fro, some of which autocast needs."""


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
    measured.patient.facts["speed/casts_pct"] = measured.share_pct(sum(one.ms for one in all_casts))
    measured.patient.facts["speed/casts_bytes_pct"] = _share_of_bytes(all_casts, measured.step.calls)
    return [*_repeated(measured), *_to_and_fro(measured)]


def _repeated(measured: MeasuredSteps) -> Iterator[RepeatedWeightCasts]:
    """Weights that are cast more often than once for each micro-batch."""
    config = measured.patient.config
    expected = measured.training.num_micro_batches
    if config.trainer.activation_checkpointing:  # each forward pass within a checkpoint casts anew
        expected *= 2
    total = _with_backward(measured.step.calls)
    counts = Counter(one.parameter for one in total if one.parameter is not None)
    needless = [
        (one, ms * (count - expected) / count)
        for one, ms in total.items()
        if one.parameter is not None and (count := counts[one.parameter]) > expected
    ]
    for spot in spots(needless):
        if measured.share_pct(spot.ms) >= _MIN_REPEATED_PCT:
            name = max(spot.calls, key=lambda one: total[one]).parameter or ""
            yield _finding(
                measured,
                RepeatedWeightCasts,
                spot,
                [] if config.precision.cache_enabled else ["precision.cache_enabled=true"],
                parameter=name,
                num_casts=counts[name],
                num_needed=expected,
            )


def _to_and_fro(measured: MeasuredSteps) -> Iterator[ActivationCasts]:
    """Activations that are cast to float32 and, after some operators, back."""
    total = _with_backward(measured.step.calls)
    by_index = {one.call.index: one for one in total}
    costs: dict[TimedCall, float] = defaultdict(float)
    for one, ms in total.items():
        up = by_index.get(one.cast_up) if one.cast_up is not None else None
        if up is not None and up.parameter is None:
            costs[up] += ms
    for up in costs:
        costs[up] += total[up]
    for spot in spots(costs.items()):
        if measured.share_pct(spot.ms) >= _MIN_TO_AND_FRO_PCT:
            yield _finding(measured, ActivationCasts, spot, num_casts=len(spot.calls))


def _with_backward(calls: tuple[TimedCall, ...]) -> dict[TimedCall, float]:
    """The casts of forward between float32 and half precision, each with its own ms and those of its backward."""
    forward = {one.call: one for one in calls if one.is_cast and one.call.phase == "forward" and _is_of_halves(one)}
    total = {one: one.ms for one in forward.values()}
    for one in calls:
        if one.is_cast and one.call.phase == "backward" and one.call.forward in forward:
            total[forward[one.call.forward]] += one.ms
    return total


def _is_of_halves(one: TimedCall) -> bool:
    dtypes = {*one.call.inputs[:1], *one.call.outputs}
    return torch.float32 in dtypes and bool(dtypes & {torch.float16, torch.bfloat16})


def _finding(
    measured: MeasuredSteps, kind: type[Kind], spot: Spot, overrides: Sequence[str] = (), **facts: Any
) -> Kind:
    bytes_pct = _share_of_bytes(spot.calls, measured.step.calls)
    return measured.finding(kind, spot, overrides, ms=spot.ms, bytes_pct=bytes_pct, **facts)


def _share_of_bytes(some: tuple[TimedCall, ...] | list[TimedCall], calls: tuple[TimedCall, ...]) -> float:
    return 100 * sum(one.num_bytes for one in some) / max(sum(one.num_bytes for one in calls), 1)
