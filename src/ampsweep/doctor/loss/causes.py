"""The causes of a value that leaves its format, told from what the operator did with the numbers that it got."""

from typing import Final

from ampsweep.doctor.loss.origins import NonfiniteOrigin, is_beyond
from ampsweep.numeric_formats import FORMATS

_EXPONENTIALS: Final = frozenset({"aten.exp", "aten.exp2", "aten.expm1", "aten.sinh", "aten.cosh"})
_LOGARITHMS: Final = frozenset({"aten.log", "aten.log2", "aten.log10", "aten.log1p"})
_ROOTS: Final = frozenset({"aten.sqrt", "aten.rsqrt", "aten.pow"}) | _LOGARITHMS
_DIVISIONS: Final = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})
_SUMS_OF_TWO: Final = frozenset({"aten.add", "aten.add_", "aten.sub"})
_PRODUCTS: Final = frozenset(
    {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.matmul", "aten.dot", "aten.mv", "aten.convolution"}
)


def cause_of(origin: NonfiniteOrigin) -> str:
    """The kind of a finding whose first inf or NaN is this one."""
    if origin.call.phase == "update":
        return "update_overflow"
    if origin.call.phase == "backward":
        return "gradient_overflow"
    operator, dtype = origin.call.operator, _dtype_of(origin)
    in_range = is_in_range(origin, dtype)
    if origin.num_certain:
        return "rounded_probability"
    if any(is_beyond(scalar, dtype) for scalar in origin.scalars):
        return "mask_overflow" if operator != "aten.mul" or origin.is_two_valued else "value_overflow"
    if operator == "aten._to_copy" and not in_range:
        return "mask_overflow" if origin.is_two_valued else "value_overflow"
    if operator in _ROOTS and origin.has_nan and origin.has_negative:
        return "cancellation"
    if operator in _LOGARITHMS and origin.divisor_zeros:
        return "log_of_zero" if origin.lost_scalar is None else "eps_vanishes"
    if operator in _DIVISIONS and origin.divisor_zeros:
        return "divisor_vanishes" if origin.lost_scalar is None else "eps_vanishes"
    if operator in _DIVISIONS and operator != "aten.pow":
        return "tiny_divisor"
    if operator in _EXPONENTIALS:
        return "exp_overflow"
    if origin.reduced_elements > 1 and operator not in _PRODUCTS:
        return "long_sum"
    return "growing_sum" if operator in _SUMS_OF_TWO else "value_overflow"


def is_in_range(origin: NonfiniteOrigin, dtype: str) -> bool:
    """Tell whether the float32 result would fit into the format: then the numbers before were already wrong."""
    return origin.float32_max_abs is not None and origin.float32_max_abs <= FORMATS[dtype].max


def _dtype_of(origin: NonfiniteOrigin) -> str:
    """The narrowest floating-point format among what the call got and made."""
    names = [str(one).removeprefix("torch.") for one in (*origin.call.outputs, *origin.call.inputs)]
    return min((one for one in names if one in FORMATS), key=lambda one: FORMATS[one].max, default="float32")
