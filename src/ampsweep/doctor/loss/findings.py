"""The findings of the complaint `loss`: it is inf or NaN, or worse than in float32; a class for each cause."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.loss.fault import FaultSigns
from ampsweep.doctor.loss.origins import NonfiniteOrigin
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.text import number, plural

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
    """Parts of the precision that were switched by themselves, by whether that mends the fault; None: not tried."""

    autocast_off_mends: bool | None = None
    scaler_off_mends: bool | None = None
    scaler_on_mends: bool | None = None

    @property
    def told(self) -> list[str]:
        """A clause on all of them."""
        tried = {
            "switching autocast off": self.autocast_off_mends,
            "switching the scaler off": self.scaler_off_mends,
            "adding a scaler": self.scaler_on_mends,
        }
        helps = {True: "mends it", False: "does not mend it"}
        told = [f"{what} {helps[mends]}" for what, mends in tried.items() if mends is not None]
        return ["; ".join(told)] if told else []


@dataclass(frozen=True, kw_only=True)
class TriedSteps(TriedChange):
    """The steps of the training with a change."""

    num_steps: int

    @property
    def sentence(self) -> str:
        tried = f"tried for {self.num_steps} steps"
        if not self.mends:
            return f"{tried}: it helps, but the loss is still worse than in float32"
        return f"{tried}: the fault is gone"


class LossFinding(DoctorFinding):
    """A loss that is not finite, or worse than in float32."""

    complaint = "loss"
    signs: FaultSigns
    switches: Switches = field(default_factory=Switches)

    @property
    def evidence(self) -> list[str]:
        return [self.signs.sentence, *self.switches.told, *super().evidence]

    @property
    def inside(self) -> str:
        return super().inside or " outside the model"


class NotPrecision(LossFinding):
    template = "the loss goes wrong in float32, too: precision is not the cause"
    remedy = "look at the learning rate, the data and the loss first"


class Unsearched(LossFinding):
    template = "the loss goes wrong in {dtype} and not in float32; time was up before the cause was known"
    remedy = "give the doctor more time (doctor.max_seconds)"


class Unexplained(LossFinding):
    template = "the loss goes wrong in {dtype} and not in float32, and no change that was tried mends it"

    @property
    def advice(self) -> str | None:
        return "train in another mode" if self.change.overrides else None


class WholeModel(Unexplained):
    template = "no few modules in float32 mend the loss in {dtype}"


class ScalerFault(LossFinding):
    """A fault that another scale mends."""

    init_scale: float | None
    """None: there is no scaler."""


class GradientsVanish(ScalerFault):
    template = "gradients are too small for float16, and no scaler makes them larger"
    remedy = "train with a scaler"


class WrongScale(ScalerFault):
    template = "the scale begins at {init_scale}: gradients vanish in float16, or leave its range"
    remedy = "begin with the scale that torch begins with"


class OptimizerEps(LossFinding):
    template = "the optimizer's eps={eps} is zero in float16, and it divides by zero"
    seen = ("the squares of small gradients are zero in float16, too",)
    remedy = "use an eps that float16 holds, or float32 parameters (amp_fp16)"
    eps: float


class UpdatesLost(LossFinding):
    template = (
        "{unchanged_pct} of the weights with a gradient stay as they are: updates are smaller than half the distance "
        "to the next number in {dtype}"
    )
    remedy = "keep the parameters in float32"
    unchanged_pct: float


@dataclass(frozen=True, kw_only=True)
class MendingSet:
    """The search for what mends by computing in float32."""

    num_replays: int
    num_modules: int
    """All that compute anything, one of which is outside of modules."""

    def told(self, size: int) -> str:
        """A clause on a set of so many modules."""
        found = f"{'one' if size == 1 else size} of {self.num_modules} modules in float32 mend{'s' * (size == 1)} it"
        found = f"{found}, found in {plural(self.num_replays, 'replay')}"
        return f"{found}; without any one of them the fault is back" if size > 1 else found


class OfOperator(LossFinding):
    """A fault that computing a part of the step in float32 mends: a base of classes, one a cause."""

    remedy: ClassVar[str | None] = "keep it in float32"
    line: ClassVar[str | None] = None
    """The line of Python that does without what the dtype cannot hold; the names stand for the user's own."""

    origin: NonfiniteOrigin | None = None
    """None where everything was finite."""
    mending: MendingSet | None = None

    @property
    def evidence(self) -> list[str]:
        told = super().evidence
        if (origin := self.origin) is not None:
            gets = f"{self.operator} in the {origin.phase} pass gets values up to {number(origin.input_max_abs)}"
            wide = origin.float32_max_abs
            told.insert(1, gets if wide is None else f"{gets}; its result would reach {number(wide)} in float32")
        return [*told, *([self.mending.told(max(len(self.modules), 1))] if self.mending else [])]


class MaskOverflow(OfOperator):
    template = "an attention mask of a constant beyond the range of {dtype} becomes -inf{inside}{at}"
    remedy = (
        "a row that is masked everywhere then has NaN in its softmax; mask with the lowest number of the scores' dtype"
    )
    line = "scores.masked_fill(mask, torch.finfo(scores.dtype).min)"


class ExpOverflow(OfOperator):
    template = (
        "exp overflows {dtype}{inside}{at}: it gets values up to {input_max_abs}, and {dtype} holds no more than "
        "exp({most_exponent})"
    )
    remedy = "compute it in float32, or keep what it gets small; a softmax subtracts the maximum first"

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"most_exponent": _MOST_EXPONENT.get(self.signs.dtype)}


class LongSum(OfOperator):
    template = "a sum over {reduced_elements} elements overflows {dtype}{inside}{at}"
    remedy = "add up in float32"
    line = "x.sum(dim, dtype=torch.float32)"


class EpsVanishes(OfOperator):
    template = "eps={eps} is zero in {dtype}{inside}{at}, and {operator} gets zeros"
    remedy = "use an eps that {dtype} holds, or compute this in float32"
    line = "eps = torch.finfo(x.dtype).tiny"


class DivisorVanishes(OfOperator):
    template = "a divisor is zero in {dtype} and not in float32{inside}{at}"


class LogOfZero(OfOperator):
    template = "a number that is above zero in float32 is zero in {dtype}, and its logarithm infinite{inside}{at}"
    remedy = "compute the logarithm of the probability from the logits, or what makes the probability in float32"
    line = "torch.nn.functional.logsigmoid(logits)  # of a softmax: log_softmax"


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
    unchanged_pct: float | None = None
    """The share of the weights with a gradient that updates leave as they are."""

    @property
    def sentence(self) -> str:
        if self.signs.sign == "vanished_gradients":
            return f"gradients become zero in {self.signs.dtype}{self.inside}{self.at}"
        return f"{self.signs.dtype} rounds so coarsely{self.inside}{self.at} that the loss is another than in float32"


def cause_of(origin: NonfiniteOrigin) -> type[OfOperator]:
    """The kind of the finding whose first inf or NaN is this one."""
    if origin.phase == "update":
        return UpdateOverflow
    if origin.phase == "backward":
        return GradientOverflow
    operator, dtype = origin.call.operator, _dtype_of(origin)
    wide = origin.float32_max_abs
    if origin.is_certain:
        return CoarseRounding
    if any(math.isfinite(one) and abs(one) > FORMATS[dtype].max for one in origin.scalars):
        return MaskOverflow if operator != "aten.mul" or origin.is_two_valued else ValueOverflow
    if operator == "aten._to_copy" and (wide is None or wide > FORMATS[dtype].max):
        return MaskOverflow if origin.is_two_valued else ValueOverflow
    if operator in _ROOTS and origin.has_nan and origin.has_negative:
        return Cancellation
    if operator in _LOGARITHMS and origin.divisor_zeros:
        return LogOfZero if origin.eps is None else EpsVanishes
    if operator in _DIVISIONS and origin.divisor_zeros:
        return DivisorVanishes if origin.eps is None else EpsVanishes
    if operator in _EXPONENTIALS:
        return ExpOverflow
    if origin.reduced_elements > 1 and operator not in _PRODUCTS:
        return LongSum
    return ValueOverflow


def _dtype_of(origin: NonfiniteOrigin) -> str:
    """The narrowest floating-point format among what the call got and made."""
    names = map(dtype_name, (*origin.call.outputs, *origin.call.inputs))
    return min((one for one in names if one in FORMATS), key=lambda one: FORMATS[one].max, default="float32")
