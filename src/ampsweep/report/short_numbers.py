"""Points of a curve as a page holds them: in few characters, many at once."""

from typing import Final

import numpy as np

from ampsweep.report.curves import Array

_DIGITS: Final = 5
"""Significant digits of a point; a figure in a table has all of its own."""
_SMALLEST: Final = 1e-17
"""Five digits of it end at 1e-21, and 1e22 is the largest power of ten that is a double, as all below it are."""
_MAX_WHOLE: Final = 1e15


def short_numbers(values: Array) -> list[float | int | None]:
    """Numbers for JSON: whole ones whole, others with 5 significant digits, non-finite ones as gaps."""
    short = _rounded(values)
    is_whole = (short == np.rint(short)) & (np.abs(short) < _MAX_WHOLE)
    if is_whole.all():
        whole: list[float | int | None] = short.astype(np.int64).tolist()
        return whole
    numbers: list[float | int | None] = short.tolist()
    for index in np.flatnonzero(is_whole).tolist():
        numbers[index] = int(short[index])
    for index in np.flatnonzero(~np.isfinite(short)).tolist():
        numbers[index] = None
    return numbers


def _rounded(values: Array) -> Array:
    """To 5 significant digits; whole numbers, and what is too small, stay as they are.

    Whole numbers of 5 digits are divided by powers of ten that a double holds exactly: the quotient is the double
    nearest to the short decimal, and is written as that.
    """
    size = np.abs(values)
    usable = np.isfinite(values) & (size >= _SMALLEST) & (values != np.rint(values))
    decimals = _DIGITS - 1 - np.floor(np.log10(np.where(usable, size, 1.0)))
    power = 10.0 ** np.maximum(decimals, 0)
    return np.where(usable, np.rint(np.where(usable, values, 0.0) * power) / power, values)
