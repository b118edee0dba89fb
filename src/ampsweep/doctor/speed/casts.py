"""Copies in another dtype: weights that are cast several times, activations that are cast to and fro."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from ampsweep.doctor.speed.measured_steps import MeasuredSteps, Spot, spots
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.record.diagnosis import DoctorFinding

_MIN_REPEATED_PCT: Final = 5.0
"""Share of a step from which repeated casts of weights are told: none of them is needed."""
_MIN_TO_AND_FRO_PCT: Final = 6.0
"""The same of casts to and fro, some of which autocast needs."""


def casts(measured: MeasuredSteps) -> list[DoctorFinding]:
    """Find casts that cost a good part of the step and could be left out."""
    all_casts = [one for one in measured.step.of_phases("forward", "backward") if one.is_cast]
    measured.patient.facts["speed/casts_pct"] = measured.share_pct(sum(one.ms for one in all_casts))
    measured.patient.facts["speed/casts_bytes_pct"] = _share_of_bytes(all_casts, measured.step.calls)
    return [*_repeated(measured), *_to_and_fro(measured)]


def _repeated(measured: MeasuredSteps) -> Iterator[DoctorFinding]:
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
                "repeated_weight_casts",
                spot,
                {"parameter": name, "num_casts": counts[name], "num_needed": expected},
                [] if config.precision.cache_enabled else ["precision.cache_enabled=true"],
            )


def _to_and_fro(measured: MeasuredSteps) -> Iterator[DoctorFinding]:
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
            yield _finding(measured, "activation_casts", spot, {"num_casts": len(spot.calls)})


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
    measured: MeasuredSteps, kind: str, spot: Spot, evidence: dict[str, object], overrides: Sequence[str] = ()
) -> DoctorFinding:
    own = {"ms": spot.ms, "bytes_pct": _share_of_bytes(spot.calls, measured.step.calls)}
    return measured.finding(kind, spot, own | evidence, overrides)


def _share_of_bytes(some: tuple[TimedCall, ...] | list[TimedCall], calls: tuple[TimedCall, ...]) -> float:
    return 100 * sum(one.num_bytes for one in some) / max(sum(one.num_bytes for one in calls), 1)
