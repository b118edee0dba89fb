"""Operators of a step that are called once more with other arguments, to see what these would save."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ampsweep.doctor.speed.device_rates import timed_ms
from ampsweep.doctor.speed.measured_steps import Costs, MeasuredSteps
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.monitors.step_clock import Moments
from ampsweep.tracing.calls import Call, observe

_REPEATED: Final = 5

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def gains(
    measured: MeasuredSteps,
    wanted: Sequence[TimedCall],
    change: Callable[[Sequence[Any], dict[str, Any]], Arguments],
    *,
    seconds: float,
    least: float = 0.0,
) -> Costs:
    """The ms that operators of the step would save with other arguments, as far as they can be tried in some seconds.

    Args:
        change: makes other arguments of an operator's.
        least: the least share of its time that an operator saves.
    """
    by_index = {one.call.index: one for one in wanted}
    end_s = monotonic() + max(min(seconds, measured.patient.seconds_left), 0.0)
    shares: dict[TimedCall, float] = {}
    operators: list[Any] = []

    def around(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        operators.append(operator)
        return operator(*args, **kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], _: Any) -> None:
        operator = operators.pop()
        if call.index in by_index and monotonic() <= end_s:
            other = change(args, kwargs)
            shares[by_index[call.index]] = _gain(operator, (tuple(args), kwargs), other, measured.moments)

    if wanted:
        with observe(measured.training.model, on_call, around=around, places=False):
            measured.training.step()
    return [(one, one.ms * share) for one, share in shares.items() if share >= least]


def _gain(operator: Any, own: Arguments, other: Arguments, moments: Moments) -> float:
    """The share of its least time that other arguments save, the two taken in turn; 0 where they save nothing."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATED):
        for (args, kwargs), ms in zip((own, other), times, strict=True):
            ms.append(timed_ms(lambda args=args, kwargs=kwargs: operator(*args, **kwargs), moments))  # type: ignore[misc]
    return max(1 - min(times[1]) / min(times[0]), 0.0) if min(times[0]) else 0.0


def in_dtype(dtype: torch.dtype) -> Callable[[Sequence[Any], dict[str, Any]], Arguments]:
    """The change of an operator's arguments that casts its float32 tensors."""

    def cast(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        def of(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

        return tuple(tree_map_only(Tensor, of, tuple(args))), dict(tree_map_only(Tensor, of, kwargs))

    return cast
