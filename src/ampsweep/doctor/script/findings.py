"""Findings about a training that only ran once: what its own calls prove, and nothing that would need a replay."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change, DoctorFinding, where
from ampsweep.doctor.loss import findings as of_loss
from ampsweep.doctor.loss.fault import FaultSigns, Sign
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin, NonfiniteTensor
from ampsweep.doctor.tensor_origins import TensorOrigin


class ScriptSigns(FaultSigns):
    """How a fault shows in the training itself; its sentence says nothing of float32, with which none was compared."""

    @classmethod
    def at(cls, sign: Sign, step: int, **more: Any) -> Self:
        return cls(sign=sign, step=step, num_steps=step, dtype="", **more)

    @property
    def sentence(self) -> str:
        return re.split(";| where it", super().sentence)[0]


class MakesNonfinite(of_loss.OfOperator):
    """A call for which float32 is no way out, or not surely."""

    template = "{operator} makes {what}{inside}{at}"
    remedy = None
    origin: NonfiniteOrigin

    @property
    def what(self) -> str:
        return "NaN" if self.origin.has_nan else "inf"


class NonfiniteInput(of_loss.LossFinding):
    template = "inf or NaN comes in with {source}: {operator}{inside}{at} is the first to get it"
    remedy = "look at the data of this step, or at the updates before it, before precision"
    source: str


class NotScaled(DoctorFinding):
    complaint = "loss"
    template = (
        "the scaler divides gradients by {scale} that it has not multiplied: backward began at an unscaled loss{at}"
    )
    remedy = "scale the loss"
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


class LimitedScaled(DoctorFinding):
    complaint = "loss"
    template = "gradients are clipped while they are multiplied by the scaler's {scale}{at}"
    seen = ("after that their norm is {norm}, of which the scaler's step leaves {left}",)
    remedy = "unscale them first"
    scale: float
    norm: float
    left: float


class AutocastElsewhere(DoctorFinding):
    complaint = "numerics"
    template = "autocast is on for {asked}{at}, and never for {device}, where the products of matrices run in float32"
    remedy = "ask for it where the tensors are"
    asked: str
    device: str


class HostReads(DoctorFinding):
    severity = "warning"
    complaint = "speed"
    template = "a line reads {num_reads} single numbers of tensors a step{at}"
    remedy = "read them together: on an accelerator the host waits for the device at each"
    num_reads: int


def of_tensor(
    origin: TensorOrigin, bad: NonfiniteTensor, edit: CodeEdit | None, signs: ScriptSigns
) -> of_loss.LossFinding | None:
    """The finding on where inf or NaN in a loss began."""
    if bad.made is not None:
        return of_origin(bad.made, signs, edit)
    if bad.arrived_in is None:
        return None
    is_held = origin.kind in ("parameter", "buffer", "attribute")
    source = f"the {origin.kind} {origin.name}" if is_held else "its data (nothing that was observed has made it)"
    return NonfiniteInput(signs=signs, source=source, **where(bad.arrived_in))


def of_origin(origin: NonfiniteOrigin, signs: ScriptSigns, edit: CodeEdit | None = None) -> of_loss.OfOperator:
    """Its cause is known where the same few calls stay finite in float32."""
    dtype = of_loss.dtype_of(origin)
    is_proved = origin.is_range and origin.phase == "forward" and dtype != "float32"
    kind = of_loss.kind_of(origin) if is_proved else MakesNonfinite
    change = Change(code=None if edit is None else edit.patch)
    return kind(signs=replace(signs, dtype=dtype), origin=origin, change=change, **where(origin.call))


def change_of(make: Callable[..., CodeEdit | None], *places: Any) -> Change:
    """The change by an edit that is made of places in the code, if all of them are known."""
    edit = None if None in places else make(*places)
    return Change(code=None if edit is None else edit.patch)
