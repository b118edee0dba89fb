"""Values of metrics as text, and on axes in a unit that suits their size."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ampsweep.report.tables import Cell
from ampsweep.text import GIB, milliseconds, num_bytes, number, percent, signed

_BINARY: Final = (("GiB", 1.0), ("MiB", 2.0**10), ("KiB", 2.0**20), ("B", 2.0**30))


def quantity(value: float, unit: str, *, sign: bool = False) -> str:
    """A value of a metric with its unit, in the digits that every report uses.

    >>> quantity(0.5, "GiB"), quantity(12.34, "ms"), quantity(7.0, "%"), quantity(1.0, "", sign=True)
    ('512 MiB', '12.3 ms', '7.0%', '+1.00')
    >>> quantity(40.0, "samples")
    '40'
    """
    plus = "+" if sign and value > 0 else ""
    if unit == "GiB":
        return ("" if num_bytes(value * GIB) == "0 B" else plus) + num_bytes(value * GIB)
    if unit == "samples":
        return f"{plus}{value:.0f}"
    if unit == "ms":
        return plus + milliseconds(value)
    if unit == "%":
        return plus + percent(value)
    text = (signed if sign else number)(value)
    return f"{text} {unit}" if unit else text


def quantity_cell(value: float | None, unit: str) -> Cell:
    """A value of a metric as a cell; absent where there is none."""
    return Cell() if value is None else Cell(quantity(value, unit), value)


@dataclass(frozen=True)
class AxisUnit:
    """The factor that values of a metric are multiplied by for an axis, and the unit they then have."""

    factor: float
    unit: str


def axis_unit(values: Iterable[float], unit: str) -> AxisUnit:
    """The unit in which an axis shows `values`: bytes in the largest unit of which there is at least one."""
    if unit != "GiB":
        return AxisUnit(1.0, unit)
    largest = max((abs(value) for value in values), default=0.0)
    name, factor = next(((name, factor) for name, factor in _BINARY if largest * factor >= 1), _BINARY[0])
    return AxisUnit(factor, name)
