"""The findings of the complaint `loss`: it is inf or NaN, or worse than in float32; one class per cause."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.loss.fault import FaultSigns
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin
from ampsweep.doctor.running_code import Names, limits_of_dtype
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.text import number, plural
from ampsweep.user_code import CodeLine

_EXPONENTIALS: Final = frozenset({"aten.exp", "aten.exp2", "aten.expm1", "aten.sinh", "aten.cosh"})
_LOGARITHMS: Final = frozenset({"aten.log", "aten.log2", "aten.log10", "aten.log1p"})
_ROOTS: Final = frozenset({"aten.sqrt", "aten.rsqrt", "aten.pow"}) | _LOGARITHMS
_DIVISIONS: Final = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})
_MOST_EXPONENT: Final = {"float16": 11, "bfloat16": 88}
_PRODUCTS: Final = frozenset(
    {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.matmul", "aten.dot", "aten.mv", "aten.convolution"}
)


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Whether switching a part of the precision on or off fixes the fault; None: not tried."""

    autocast_off_mends: bool | None = None
    scaler_off_mends: bool | None = None
    scaler_on_mends: bool | None = None

    @property
    def evidence(self) -> list[str]:
        names = ("switching autocast off", "switching the scaler off", "adding a scaler")
        tried = zip(names, (self.autocast_off_mends, self.scaler_off_mends, self.scaler_on_mends), strict=True)
        clauses = [f"{name} {'fixes' if does else 'does not fix'} it" for name, does in tried if does is not None]
        return ["; ".join(clauses)] if clauses else []


@dataclass(frozen=True, kw_only=True)
class TriedSteps(TriedChange):
    num_steps: int
    is_equal: bool = True  # the loss is that of float32, as far as rounding allows

    @property
    def sentence(self) -> str:
        fixed = "the fault is gone" if self.is_equal else "the loss is finite, if still worse than in float32"
        result = fixed if self.mends else "it helps, but the loss is still worse than in float32"
        return f"tried for {plural(self.num_steps, 'step')}: {result}"


class LossFinding(DoctorFinding):
    complaint = "loss"
    signs: FaultSigns
    switches: Switches = field(default_factory=Switches)

    @property
    def evidence(self) -> list[str]:
        return [self.signs.sentence, *self.switches.evidence, *super().evidence]

    @property
    def inside(self) -> str:
        return super().inside or " outside the model"


class NotPrecision(LossFinding):
    template = "the loss goes wrong in float32, too: precision is not the cause"
    remedy = "look at the learning rate, the data and the loss first"


class Unsearched(LossFinding):
    template = "the loss goes wrong in {dtype} but not in float32; time ran out before the cause was found"
    remedy = "give the doctor more time (doctor.max_seconds)"


class Unexplained(LossFinding):
    template = "the loss goes wrong in {dtype} but not in float32"
    remedy_by_overrides = "train in another mode"


class WholeModel(Unexplained):
    template = "keeping a few modules in float32 does not fix the loss in {dtype}"


class ChangedWhileScaled(LossFinding):
    template = "gradients are changed while they are multiplied by the scale{at}"
    remedy = "train without a scaler, or change gradients after they are unscaled (a tensor's hook comes too early)"


class ScalerFault(LossFinding):
    init_scale: float | None  # None: there is no scaler


class GradientsVanish(ScalerFault):
    template = "gradients are too small for float16, and there is no scaler to scale them up"
    remedy = "train with a scaler"


class WrongScale(ScalerFault):
    template = "the initial scale is {init_scale}: gradients vanish in float16, or leave its range"
    remedy = "use torch's default initial scale"


class OptimizerEps(LossFinding):
    template = "the optimizer's eps={eps} is zero in float16, and it divides by zero"
    seen = ("the squares of small gradients are zero in float16, too",)
    remedy = "use an eps that float16 can hold, or float32 parameters (amp_fp16)"
    eps: float


@dataclass(frozen=True, kw_only=True)
class SmallestSet:
    num_replays: int
    num_modules: int  # all modules that compute anything; everything outside the model counts as one
    num_needed: int  # of the modules of the finding; in the others the same line goes wrong, but the loss is right

    @property
    def text(self) -> str:
        size = self.num_needed
        found = f"{'one' if size == 1 else size} of {self.num_modules} modules in float32 fix{'es' * (size == 1)} it"
        found = f"{found}, found in {plural(self.num_replays, 'replay')}"
        return f"{found}; leaving out any of them brings the fault back" if size > 1 else found


class OfOperator(LossFinding):
    """Base of the faults that go away when part of the step computes in float32."""

    remedy: ClassVar[str | None] = "keep it in float32"
    edits: ClassVar[Callable[[CodeLine, Names], Iterator[CodeEdit]]] = lambda *_: iter(())
    """Makes edits of a line that are tried before computing it in float32."""

    origin: NonfiniteOrigin | None = None  # None where everything was finite
    mending: SmallestSet | None = None

    @property
    def evidence(self) -> list[str]:
        sentences = super().evidence
        if (origin := self.origin) is not None and origin.input_max_abs is not None:
            gets = f"{self.operator} in the {origin.phase} pass gets values up to {number(origin.input_max_abs)}"
            if origin.float32_max_abs is not None:
                reaches = f"its result would reach {number(origin.float32_max_abs)} in float32"
                gets += f"; {reaches if origin.is_range else 'of the same numbers float32 makes it, too'}"
            sentences.insert(1, gets)
        if self.mending is not None:
            same = "; the same line goes wrong in the others" * (self.mending.num_needed < len(self.modules))
            sentences.append(self.mending.text + same)
        return sentences


class MaskOverflow(OfOperator):
    template = "an attention mask with a constant beyond the range of {dtype} becomes -inf{inside}{at}"
    remedy = "a fully masked row then has NaN in its softmax; mask with the lowest number of the scores' dtype"
    edits = limits_of_dtype


class ExpOverflow(OfOperator):
    template = "exp overflows {dtype} at exp({most_exponent}){inside}{at}: its input reaches {input_max_abs}"
    remedy = "compute it in float32, or keep its input small; for a softmax, subtract the maximum first"

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"most_exponent": _MOST_EXPONENT.get(self.signs.dtype)}


class LongSum(OfOperator):
    template = "a sum over {reduced_elements} elements overflows {dtype}{inside}{at}"
    remedy = "add up in float32"


class EpsVanishes(OfOperator):
    template = "eps={eps} is zero in {dtype}{inside}{at}, and {operator} gets zeros"
    remedy = "use an eps that {dtype} can hold, or compute this in float32"


class DivisorVanishes(OfOperator):
    template = "a divisor is zero in {dtype} and not in float32{inside}{at}"


class LogOfZero(OfOperator):
    template = "a number that is above zero in float32 is zero in {dtype}, and its logarithm infinite{inside}{at}"
    remedy = "compute the log-probability from the logits, or the probability in float32"


class Cancellation(OfOperator):
    template = "a difference of close numbers is below zero in {dtype}, and its root is NaN{inside}{at}"
    remedy = "compute it in float32, or without a difference of large numbers"


class ValueOverflow(OfOperator):
    template = "values of up to {float32_max_abs} leave the range of {dtype}{inside}{at}"


class GradientOverflow(OfOperator):
    template = "the gradient leaves the range of {dtype} at any scale, in the backward pass{inside}{at}"


class UpdateOverflow(OfOperator):
    template = "the optimizer's step makes inf or NaN in {dtype}{inside}{at}"
    remedy = "train with float32 parameters"


class CoarseRounding(OfOperator):
    remedy = "compute it in float32"

    @property
    def sentence(self) -> str:
        if self.signs.sign == "vanished_gradients":
            return f"gradients become zero in {self.signs.dtype}{self.inside}{self.at}"
        return f"{self.signs.dtype} rounds so coarsely{self.inside}{self.at} that the loss differs from float32's"


def kind_of(origin: NonfiniteOrigin) -> type[OfOperator]:
    if origin.phase == "update":
        return UpdateOverflow
    if origin.phase == "backward":
        return GradientOverflow
    operator, dtype = origin.call.operator, dtype_of(origin)
    wide = origin.float32_max_abs
    if any(math.isfinite(scalar) and abs(scalar) > FORMATS[dtype].max for scalar in origin.scalars):
        return MaskOverflow if operator != "aten.mul" or origin.is_two_valued else ValueOverflow
    if operator == "aten._to_copy" and (wide is None or wide > FORMATS[dtype].max):
        return MaskOverflow if origin.is_two_valued else ValueOverflow
    if operator in _ROOTS and origin.has_nan and origin.has_negative:
        return Cancellation
    if operator in _LOGARITHMS and origin.has_zeros:
        return LogOfZero if origin.eps is None else EpsVanishes
    if operator in _DIVISIONS and origin.has_zeros:
        return DivisorVanishes if origin.eps is None else EpsVanishes
    if operator in _EXPONENTIALS:
        return ExpOverflow
    if origin.reduced_elements > 1 and operator not in _PRODUCTS:
        return LongSum
    return ValueOverflow


def dtype_of(origin: NonfiniteOrigin) -> str:
    names = map(dtype_name, (*origin.call.outputs, *origin.call.inputs))
    return min((name for name in names if name in FORMATS), key=lambda name: FORMATS[name].max, default="float32")
