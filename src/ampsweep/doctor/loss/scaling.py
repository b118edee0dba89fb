"""The scaler's part in a fault: a scale too large or too small for the gradients, or none at all."""

from dataclasses import dataclass, replace
from typing import Final

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.loss.fault import NOT_FINITE
from ampsweep.doctor.loss.loss_case import LossCase
from ampsweep.doctor.loss.variant import Variant

_SCALES: Final = (65536.0, 1024.0, 32.0, 1.0)
"""Scales to begin with that are tried, the largest first: the smaller it is, the more gradients vanish."""


@dataclass(frozen=True)
class ScaleChange:
    """A change of the scaler that mends a fault."""

    kind: str
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
            return ScaleChange("gradients_vanish", scaled, "precision.grad_scaler=true")
        return None
    if fault.sign == "skipped_steps":
        for scale in (one for one in _SCALES if one < own.init_scale):
            smaller = replace(own, init_scale=scale)
            if own.init_scale > _SCALES[0] and case.mends(Variant(precision=smaller), num_steps):
                return ScaleChange("scale_too_large", smaller, f"precision.init_scale={scale:g}")
        case.begin_at_scale(1.0)
    elif fault.sign not in NOT_FINITE and own.init_scale < _SCALES[0]:
        larger = replace(own, init_scale=_SCALES[0])
        if case.mends(Variant(precision=larger), num_steps):
            return ScaleChange("scale_too_small", larger, f"precision.init_scale={_SCALES[0]:g}")
    return None
