"""The changes that mend a fault, as overrides, of the scaler too, and as lines of Python."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.loss.culprits import CulpritCalls
from ampsweep.doctor.loss.fault import NOT_FINITE
from ampsweep.doctor.loss.function_calls import CalledFunction, watched_calls
from ampsweep.doctor.loss.loss_case import LossCase
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.patient import Patient
from ampsweep.tracing.calls import Call

_CODE: Final = {
    "mask_overflow": "scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
    "exp_overflow": "torch.exp(x - x.amax(dim=-1, keepdim=True))",
    "long_sum": "x.sum(dim, dtype=torch.float32)",
    "log_of_zero": "torch.nn.functional.logsigmoid(logits)  # of a softmax: log_softmax",
    "refused_loss": "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)",
    "rounded_probability": "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)",
    "eps_vanishes": "eps = torch.finfo(x.dtype).tiny",
}
"""By kind, the line that does without what float16 cannot hold; the names stand for the user's own."""
_ROUNDING: Final = 1e-4
"""The relative difference of two losses in float32 that rounding makes."""
_SCALES: Final = (65536.0, 1024.0, 32.0, 1.0)
"""Scales to begin with that are tried, the largest first: the smaller it is, the more gradients vanish."""


def kept_override(precision: PrecisionConfig, modules: Sequence[str]) -> str:
    """The override that keeps modules in float32, beside those that are already."""
    return f"precision.fp32_modules=[{','.join([*precision.fp32_modules, *modules])}]"


def code_for(kind: str, evidence: Mapping[str, object], calls: CulpritCalls | None) -> str | None:
    """The line of Python that mends a finding; None where only an override does."""
    if (code := _CODE.get(kind)) is not None and evidence.get("takes_shift", True):
        return code
    if calls is None:
        return None
    return "x = x.float()" if len(calls.calls) == 1 else "with torch.autocast(x.device.type, enabled=False): ..."


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
