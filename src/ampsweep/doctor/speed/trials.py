"""Operators of a step that are called once more with other arguments, to see what these would save."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ampsweep.doctor.speed.bare_training import BareTraining
from ampsweep.doctor.speed.device_rates import timed_ms
from ampsweep.monitors.step_clock import Moments
from ampsweep.tracing.calls import Call, observe

_REPEATED: Final = 5

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """The least times of one operator with its own arguments and with others, taken in turn."""

    own_ms: float
    other_ms: float

    @property
    def gain(self) -> float:
        """The share of its time that the other arguments save; 0 where they save nothing."""
        return max(1 - self.other_ms / self.own_ms, 0.0) if self.own_ms else 0.0


def tried(
    training: BareTraining,
    moments: Moments,
    changes: Mapping[int, Callable[[Sequence[Any], dict[str, Any]], Arguments | None]],
    *,
    end_s: float,
) -> dict[int, Trial]:
    """Take a step, and time some of its operators by their index with their own arguments and with changed ones.

    Args:
        changes: make other arguments of an operator's; None where there are none.
        end_s: `time.monotonic` after which no further operator is timed.
    """
    found: dict[int, Trial] = {}
    operators: list[Any] = []

    def around(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        operators.append(operator)
        return operator(*args, **kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], _: Any) -> None:
        operator = operators.pop()
        if call.index not in changes or monotonic() > end_s:
            return
        other = changes[call.index](args, kwargs)
        if other is not None:
            found[call.index] = _compared(operator, (tuple(args), kwargs), other, moments)

    if changes:
        with observe(training.model, on_call, around=around, places=False):
            training.step()
    return found


def _compared(operator: Any, own: Arguments, other: Arguments, moments: Moments) -> Trial:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATED):
        for (args, kwargs), ms in zip((own, other), times, strict=True):
            ms.append(timed_ms(lambda args=args, kwargs=kwargs: operator(*args, **kwargs), moments))  # type: ignore[misc]
    return Trial(min(times[0]), min(times[1]))


def in_dtype(dtype: torch.dtype) -> Callable[[Sequence[Any], dict[str, Any]], Arguments]:
    """The change of an operator's arguments that casts its float32 tensors."""

    def cast(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        def of(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

        return tuple(tree_map_only(Tensor, of, tuple(args))), dict(tree_map_only(Tensor, of, kwargs))

    return cast
