"""An exponential that may get its inputs less their maximum, as that of a softmax: tried, not recognized."""

import math
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from ampsweep.doctor.loss.function_calls import CalledFunction, watched_calls
from ampsweep.doctor.patient import Patient
from ampsweep.tracing.calls import Call

_ROUNDING: Final = 1e-4
"""The relative difference of two losses in float32 that rounding makes."""


def takes_shift(patient: Patient, exponential: Call) -> bool:
    """Tell whether the loss of a step in float32 stays the same with `exp(x - x.amax(-1, keepdim=True))` for `exp(x)`.

    Args:
        exponential: the call of the operator; all calls of `exp` at its line in its module are replaced.
    """
    replay, was_called = patient.baseline(), False

    def on_call(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nonlocal was_called
        is_it = (call.module, call.place) == (exponential.module, exponential.place)
        if is_it and (call.function or "").endswith(".exp") and isinstance(args[0], Tensor) and args[0].dim():
            was_called = True
            return func(args[0] - args[0].detach().amax(-1, keepdim=True), *args[1:], **kwargs)
        return func(*args, **kwargs)

    with watched_calls(replay.model, on_call):
        shifted = replay.step().loss
    return was_called and math.isclose(shifted, patient.baseline_steps.steps[0].loss, rel_tol=_ROUNDING)
