"""Functions that raise an error under autocast for the sake of its range, and not because of two dtypes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

from ampsweep.doctor.loss.changes import code_for, kept_override
from ampsweep.doctor.loss.function_calls import CalledFunction, watched_calls
from ampsweep.doctor.loss.isolation import cast_in
from ampsweep.doctor.loss.origins import is_beyond
from ampsweep.doctor.loss.variant import Kept, Variant
from ampsweep.doctor.patient import Patient
from ampsweep.precision.fp32_modules import in_float32
from ampsweep.record.diagnosis import Change, DoctorFinding
from ampsweep.tracing.ledger import tensors_in


@dataclass
class _Refused:
    """A call that raised an error."""

    call: CalledFunction
    scalars: tuple[float, ...]
    dtypes: tuple[torch.dtype, ...]
    works_in_float32: bool
    works_in_one_dtype: bool
    """It works with all its inputs in half precision: then two dtypes that do not go together are to blame."""
    works_without_autocast: bool
    """It works so with autocast off: then autocast refuses it."""


def examine_refusal(patient: Patient, error: Exception) -> Sequence[DoctorFinding]:
    """Examine a step that raises an error in its own precision and not in float32.

    Errors of dtypes that do not go together are another complaint, and no finding here.
    """
    refused = _find(patient, len(patient.own_steps.steps))
    if refused is None or not refused.works_in_float32:
        return []
    halves = [one for one in refused.dtypes if one in (torch.float16, torch.bfloat16)]
    dtype = str(halves[0]).removeprefix("torch.") if halves else patient.config.precision.dtype
    large = [one for one in refused.scalars if is_beyond(one, dtype)]
    if not large and refused.works_in_one_dtype:
        return []
    kind = "mask_overflow" if large else "refused_loss" if refused.works_without_autocast else "no_kernel"
    evidence: dict[str, object] = {
        "sign": "error",
        "step": len(patient.own_steps.steps) + 1,
        "num_steps": len(patient.baseline_steps.steps),
        "dtype": dtype,
        "error": str(error).splitlines()[0],
    }
    if large:
        evidence["scalar"] = large[0]
    module, precision = refused.call.module, patient.config.precision
    kept: Kept = module or refused.call
    num_steps = len(patient.baseline_steps.steps)
    proof: dict[str, object] = {}
    overrides: list[str] = []
    if precision.autocast:
        taken = Variant(kept=frozenset({kept})).steps(patient, num_steps)
        proof = {"mends": taken.error is None and len(taken.steps) == num_steps, "num_steps": len(taken.steps)}
        overrides = [kept_override(precision, [module])] if module and proof["mends"] else []
    return [
        DoctorFinding(
            complaint="loss",
            kind=kind,
            modules=[] if module is None else [module],
            operator=refused.call.function,
            place=refused.call.place,
            evidence=evidence,
            change=Change(overrides=overrides, code=code_for(kind, evidence, None)),
            proof=proof,
        )
    ]


def _find(patient: Patient, num_steps_before: int) -> _Refused | None:
    """Take the step that raises an error again; find the innermost function that raised it."""
    found: list[_Refused] = []
    device_type = patient.device.type

    def on_call(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (RuntimeError, ValueError, TypeError):
            if not found:
                found.append(_refused(call, func, args, kwargs, device_type))
            raise

    replay = Variant().replay(patient).replay
    try:
        for _ in range(num_steps_before):
            replay.step()
        with watched_calls(replay.model, on_call):
            replay.step()
    except Exception:  # noqa: BLE001  the model's own code may raise anything
        return found[0] if found else None
    return None


def _refused(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any, device_type: str) -> _Refused:
    values = [*args, *kwargs.values()]
    scalars = tuple(float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool))
    dtypes = tuple(one.dtype for one in (*tensors_in(args), *tensors_in(kwargs)))
    half = next((one for one in dtypes if one in (torch.float16, torch.bfloat16)), None)
    with torch.autocast(device_type, enabled=False):
        in_wide = _works(func, in_float32(args), in_float32(kwargs))
    if half is None:
        return _Refused(call, scalars, dtypes, in_wide, False, False)
    halved = cast_in(args, repeat(half)), cast_in(kwargs, repeat(half))
    with torch.autocast(device_type, enabled=False):
        without_autocast = _works(func, *halved)
    return _Refused(call, scalars, dtypes, in_wide, _works(func, *halved), without_autocast)


def _works(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    try:
        func(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError):
        return False
    return True
