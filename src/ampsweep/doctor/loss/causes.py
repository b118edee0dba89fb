"""Operators that make inf or NaN, or round too coarsely, in a dtype: a class for each cause, and the search for it."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ampsweep.doctor.loss.findings import FROM_LOGITS, LossFinding
from ampsweep.doctor.loss.origins import NonfiniteOrigin
from ampsweep.numeric_formats import FORMATS, dtype_name
from ampsweep.text import number, plural

_EXPONENTIALS: Final = frozenset({"aten.exp", "aten.exp2", "aten.expm1", "aten.sinh", "aten.cosh"})
_LOGARITHMS: Final = frozenset({"aten.log", "aten.log2", "aten.log10", "aten.log1p"})
_ROOTS: Final = frozenset({"aten.sqrt", "aten.rsqrt", "aten.pow"}) | _LOGARITHMS
_DIVISIONS: Final = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})
_SUMS_OF_TWO: Final = frozenset({"aten.add", "aten.add_", "aten.sub"})
_MOST_EXPONENT: Final = {"float16": 11, "bfloat16": 88}
_PRODUCTS: Final = frozenset(
    {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.matmul", "aten.dot", "aten.mv", "aten.convolution"}
)


@dataclass(frozen=True, kw_only=True)
class MendingSet:
    """The smallest set that mends by computing in float32, and the replays that it took."""

    num_replays: int
    most_replays: int
    num_modules: int
    """All that compute anything, one of which is outside of modules."""
    is_minimal: bool
    """The fault is back without any one of the set."""
    functions: list[str | None] = field(default_factory=list)
    """Functions that it is enough to compute in float32, in place of whole modules."""
    places: list[str | None] = field(default_factory=list)
    num_call_replays: int = 0

    def told(self, size: int) -> list[str]:
        """Clauses on a set of so many modules."""
        found = f"{'one' if size == 1 else size} of {self.num_modules} modules in float32 mend{'s' * (size == 1)} it"
        found = f"{found}, found in {plural(self.num_replays, 'replay')}"
        if not self.is_minimal:
            found += "; there may be a smaller set"
        elif size > 1:
            found += "; without any one of them the fault is back"
        if not self.functions:
            return [found]
        lines = [f"{one} ({place})" for one, place in zip(self.functions, self.places, strict=True)]
        lines = [*dict.fromkeys(lines)]
        return [found, f"in place of whole modules it is enough to compute {' and '.join(lines)} in float32"]


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
        origin = self.origin
        told = [self.signs.sentence]
        if origin is not None:
            gets = f"{self.operator} in the {origin.phase} pass gets values up to {number(origin.input_max_abs)}"
            wide = origin.float32_max_abs
            told.append(gets if wide is None else f"{gets}; its result would reach {number(wide)} in float32")
        return [*told, *self.switches.told, *(self.mending.told(max(len(self.modules), 1)) if self.mending else [])]


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
    line = "torch.exp(x - x.amax(dim=-1, keepdim=True))"
    takes_shift: bool = False
    """The loss stays the same with the maximum subtracted before exp."""

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"most_exponent": _MOST_EXPONENT.get(self.signs.dtype)}

    @property
    def advice(self) -> str:
        if self.takes_shift:
            return "subtract the maximum before exp, or use torch.softmax, which does: the loss stays as it is"
        return "compute it in float32, or keep what it gets small"


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


class TinyDivisor(OfOperator):
    template = "a division by a tiny number overflows {dtype}{inside}{at}"


class LogOfZero(OfOperator):
    template = "a number that is above zero in float32 is zero in {dtype}, and its logarithm infinite{inside}{at}"
    remedy = "compute the logarithm of the probability from the logits, or what makes the probability in float32"
    line = "torch.nn.functional.logsigmoid(logits)  # of a softmax: log_softmax"


class RoundedProbability(OfOperator):
    template = "probabilities round to exactly 0 or 1 in {dtype}, and the loss cuts their logarithms off{inside}{at}"
    remedy = "replace the loss by the one that takes logits, or compute what makes the probabilities in float32"
    line = FROM_LOGITS


class Cancellation(OfOperator):
    template = "a difference of close numbers is below zero in {dtype}, and its root is NaN{inside}{at}"
    remedy = "compute it in float32, or without a difference of large numbers"


class GrowingSum(OfOperator):
    template = "a sum of values that {dtype} still holds is beyond its range{inside}{at}"


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
    if origin.call.phase == "update":
        return UpdateOverflow
    if origin.call.phase == "backward":
        return GradientOverflow
    operator, dtype = origin.call.operator, _dtype_of(origin)
    wide = origin.float32_max_abs
    if origin.is_certain:
        return RoundedProbability
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
    if operator in _DIVISIONS and operator != "aten.pow":
        return TinyDivisor
    if operator in _EXPONENTIALS:
        return ExpOverflow
    if origin.reduced_elements > 1 and operator not in _PRODUCTS:
        return LongSum
    return GrowingSum if operator in _SUMS_OF_TWO else ValueOverflow


def _dtype_of(origin: NonfiniteOrigin) -> str:
    """The narrowest floating-point format among what the call got and made."""
    names = map(dtype_name, (*origin.call.outputs, *origin.call.inputs))
    return min((one for one in names if one in FORMATS), key=lambda one: FORMATS[one].max, default="float32")
