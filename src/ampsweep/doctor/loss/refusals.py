"""Functions that raise an error under autocast for the sake of its range, and not because of two dtypes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Final

import torch

from ampsweep.doctor.diagnosis import Change, dtype_name, kept_in_float32
from ampsweep.doctor.loss.findings import FaultSigns, NoKernel, RaisedFinding, RefusedLoss, RefusedMask, TriedSteps
from ampsweep.doctor.loss.function_calls import CalledFunction, watched_calls
from ampsweep.doctor.loss.isolation import cast_in
from ampsweep.doctor.loss.origins import is_beyond
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.patient import Patient
from ampsweep.precision.fp32_modules import in_float32
from ampsweep.tracing.ledger import tensors_in

HALF_DTYPES: Final = (torch.float16, torch.bfloat16)


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


def examine_refusal(patient: Patient, error: Exception) -> Sequence[RaisedFinding]:
    """Examine a step that raises an error in its own precision and not in float32.

    Errors of dtypes that do not go together are another complaint, and no finding here.
    """
    refused = _find(patient, len(patient.own_steps.steps))
    if refused is None or not refused.works_in_float32:
        return []
    halves = [one for one in refused.dtypes if one in HALF_DTYPES]
    dtype = dtype_name(halves[0]) if halves else patient.config.precision.dtype
    large = [one for one in refused.scalars if is_beyond(one, dtype)]
    if not large and refused.works_in_one_dtype:
        return []
    kind: Callable[..., RaisedFinding] = RefusedLoss if refused.works_without_autocast else NoKernel
    if large:
        kind = partial(RefusedMask, scalar=large[0])
    module, precision = refused.call.module, patient.config.precision
    num_steps = len(patient.baseline_steps.steps)
    found = kind(
        modules=[] if module is None else [module],
        operator=refused.call.function,
        place=refused.call.place,
        signs=FaultSigns(sign="error", step=len(patient.own_steps.steps) + 1, num_steps=num_steps, dtype=dtype),
        error=str(error).splitlines()[0],
    )
    change = Change(code=found.line)
    if not precision.autocast:
        return [replace(found, change=change)]
    taken = Variant(kept=frozenset({module or refused.call})).steps(patient, num_steps)
    proof = TriedSteps(mends=taken.error is None and len(taken.steps) == num_steps, num_steps=len(taken.steps))
    if module and proof.mends:
        change = replace(change, overrides=[kept_in_float32(precision, [module])])
    return [replace(found, change=change, proof=proof)]


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
    half = next((one for one in dtypes if one in HALF_DTYPES), None)
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
