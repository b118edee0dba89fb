"""The floating-point formats that a training may compute in: the limits of what each can hold.

The limits are those of IEEE 754 for float16, of bfloat16, and of "FP8 Formats for Deep Learning" (P. Micikevicius et
al., 2022, https://arxiv.org/abs/2209.05433) for the two of 8 bits, as `torch.finfo` tells them.
"""

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NumericFormat:
    """A floating-point format by its limits, all magnitudes."""

    name: str
    """As torch writes it."""
    max: float
    """The largest finite number."""
    min_normal_exponent: int
    """The smallest number with all its digits is two to this power."""
    min_exponent: int
    """The smallest number above zero is two to this power; below half of it everything becomes zero."""
    digits: int
    """Binary digits of a normal number, the leading one included."""

    @property
    def max_exponent(self) -> int:
        """The exponent of `max`: the largest power of two that the format holds."""
        return math.frexp(self.max)[1] - 1

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to the nearest normal number."""
        return 2.0**-self.digits


FLOAT16: Final = NumericFormat("float16", 65504.0, -14, -24, 11)
BFLOAT16: Final = NumericFormat("bfloat16", 3.3895313892515355e38, -126, -133, 8)
FLOAT8_E4M3: Final = NumericFormat("float8_e4m3fn", 448.0, -6, -9, 4)
FLOAT8_E5M2: Final = NumericFormat("float8_e5m2", 57344.0, -14, -16, 3)
FLOAT32: Final = NumericFormat("float32", 3.4028234663852886e38, -126, -149, 24)

FORMATS: Final[dict[str, NumericFormat]] = {
    one.name: one for one in (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
}


def dtype_name(dtype: object) -> str:
    """A dtype of torch without its package: `float16`."""
    return str(dtype).removeprefix("torch.")
