"""Findings about a training that only ran once: what its own calls prove, and nothing that would need a replay."""

from dataclasses import replace
from typing import Any, Final, Self

from ampsweep.doctor.diagnosis import DoctorFinding, where
from ampsweep.doctor.loss import findings as of_loss
from ampsweep.doctor.loss.fault import FaultSigns, Sign
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin
from ampsweep.doctor.script.watched_calls import NonfiniteTensor
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.doctor.types.failing_call import FailedCall
from ampsweep.doctor.types.findings import StopsWithError
from ampsweep.text import number

_PROVED: Final = (of_loss.MaskOverflow, of_loss.ExpOverflow, of_loss.LongSum, of_loss.ValueOverflow)
"""Causes that the single call proves by which float32 stays finite."""


class ScriptSigns(FaultSigns):
    """How a fault shows in the training itself; its sentence says nothing of float32, with which none was compared."""

    @classmethod
    def at(cls, sign: Sign, step: int, **more: Any) -> Self:
        return cls(sign=sign, step=step, num_steps=step, dtype="", **more)

    @property
    def sentence(self) -> str:
        return super().sentence.partition(";")[0]


class MakesNonfinite(of_loss.OfOperator):
    """A call for which float32 is no way out, or not surely."""

    template = "{operator} makes {what}{inside}{at}"
    remedy = None
    origin: NonfiniteOrigin

    @property
    def what(self) -> str:
        return "NaN" if self.origin.has_nan else "inf"

    @property
    def evidence(self) -> list[str]:
        is_also = not self.origin.is_range and self.origin.float32_max_abs is not None
        also = "; of the same numbers float32 makes it, too" if is_also else ""
        most = number(self.origin.input_max_abs)
        return [self.signs.sentence, f"in the {self.origin.phase} pass it gets values up to {most}{also}"]


class NonfiniteInput(of_loss.LossFinding):
    template = "inf or NaN comes in with {source}: {operator}{inside}{at} is the first to get it"
    remedy = "look at the data of this step, or at the updates before it, before precision"
    source: str


class NotScaled(DoctorFinding):
    complaint = "loss"
    template = (
        "the scaler divides gradients by {scale} that it has not multiplied: backward began at an unscaled loss{at}"
    )
    remedy = "call scaler.scale(loss).backward()"
    scale: float


class ScaleTooHigh(DoctorFinding):
    complaint = "loss"
    template = "{num_skipped} of {num_steps} steps are skipped, until the scale has fallen from {init_scale} to {scale}"
    remedy = "begin with the scale that it comes to"
    num_skipped: int
    num_steps: int
    init_scale: float
    scale: float


class Disproof(DoctorFinding):
    complaint = "numerics"
    template = "{claim}; {fact}{inside}{at}"
    remedy = "set autocast and torch's switches for float32 as it was asked for, or ask for what runs"
    claim: str
    fact: str


class LimitedStep(DoctorFinding):
    severity = "warning"
    complaint = "speed"
    template = "the step is limited by {limits}"
    remedy = "no precision changes that"
    limits: str


def of_tensor(origin: TensorOrigin, bad: NonfiniteTensor, signs: ScriptSigns) -> of_loss.LossFinding | None:
    """The finding on where inf or NaN in a loss began."""
    if bad.made is not None:
        return of_origin(bad.made, signs)
    if bad.arrived_in is None:
        return None
    is_held = origin.kind in ("parameter", "buffer", "attribute")
    source = f"the {origin.kind} {origin.name}" if is_held else "its data (nothing that was observed has made it)"
    return NonfiniteInput(signs=signs, source=source, **where(bad.arrived_in))


def of_origin(origin: NonfiniteOrigin, signs: ScriptSigns) -> of_loss.OfOperator:
    dtype, kind = of_loss.dtype_of(origin), of_loss.kind_of(origin)
    if origin.eps is not None and origin.divisor_zeros:
        kind = of_loss.EpsVanishes
    elif kind not in _PROVED or not origin.is_range or dtype == "float32":
        kind = MakesNonfinite
    signs = replace(signs, dtype=dtype)
    return kind(signs=signs, origin=origin, **where(origin.call))


def of_error(failed: FailedCall | None, step: int) -> StopsWithError | None:
    """The finding on the call that ended the script; None if that was no matter of dtypes."""
    return failed.finding(step=step) if failed is not None and failed.casts else None
