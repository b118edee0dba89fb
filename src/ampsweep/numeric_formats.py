"""The limits of the floating-point formats that a training may compute in, as in `torch.finfo`: IEEE 754 (float32,
float16), bfloat16, and P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (arXiv:2209.05433)."""

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NumericFormat:
    name: str
    max: float
    min_normal_exponent: int  # log2 of the smallest normal number
    min_exponent: int  # log2 of the smallest subnormal number; numbers up to half of it round to zero
    digits: int  # mantissa bits of a normal number, the implicit leading bit included

    @property
    def max_exponent(self) -> int:
        """log2 of the largest power of two that the format holds."""
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

FORMATS: Final = {known.name: known for known in (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)}


def dtype_name(dtype: object) -> str:
    """torch's name of a dtype without the package: `float16`."""
    return str(dtype).removeprefix("torch.")
