"""The changes that mend a fault, as overrides, of the scaler too, and as lines of Python."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.functions import CalledFunction, watched_calls
from ampsweep.doctor.loss.fault import NOT_FINITE
from ampsweep.doctor.loss.findings import GradientsVanish, ScalerFault, ScaleTooLarge, ScaleTooSmall
from ampsweep.doctor.loss.loss_case import LossCase
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.patient import Patient
from ampsweep.tracing.calls import Call

_ROUNDING: Final = 1e-4
"""The relative difference of two losses in float32 that rounding makes."""
_SCALES: Final = (65536.0, 1024.0, 32.0, 1.0)
"""Scales to begin with that are tried, the largest first: the smaller it is, the more gradients vanish."""


def code_in_float32(calls: Sequence[CalledFunction]) -> str | None:
    """The line of Python that computes some calls in float32; None where there are none."""
    if not calls:
        return None
    return "x = x.float()" if len(calls) == 1 else "with torch.autocast(x.device.type, enabled=False): ..."


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

    with watched_calls(replay, on_call):
        shifted = replay.step().loss
    return was_called and math.isclose(shifted, patient.baseline_steps.steps[0].loss, rel_tol=_ROUNDING)


@dataclass(frozen=True)
class ScaleChange:
    """A change of the scaler that mends a fault."""

    cause: type[ScalerFault]
    precision: PrecisionConfig
    override: str


def change_of_scale(case: LossCase) -> ScaleChange | None:
    """Find the change of the scaler alone that mends the fault; None where it has no part in it.

    A fault in which the scaler skips steps at any scale then shows in the first step of the case's trials.
    """
    own, fault = case.patient.config.precision, case.fault
    assert fault is not None
    if not own.autocast or own.dtype != "float16":
        return None
    num_steps = case.num_steps
    if not own.grad_scaler:
        scaled = replace(own, grad_scaler=True)
        if fault.sign not in NOT_FINITE and case.mends(Variant(precision=scaled), num_steps):
            return ScaleChange(GradientsVanish, scaled, "precision.grad_scaler=true")
        return None
    if fault.sign == "skipped_steps":
        for scale in (one for one in _SCALES if one < own.init_scale):
            smaller = replace(own, init_scale=scale)
            if own.init_scale > _SCALES[0] and case.mends(Variant(precision=smaller), num_steps):
                return ScaleChange(ScaleTooLarge, smaller, f"precision.init_scale={scale:g}")
        case.begin_at_scale(1.0)
    elif fault.sign not in NOT_FINITE and own.init_scale < _SCALES[0]:
        larger = replace(own, init_scale=_SCALES[0])
        if case.mends(Variant(precision=larger), num_steps):
            return ScaleChange(ScaleTooSmall, larger, f"precision.init_scale={_SCALES[0]:g}")
    return None
