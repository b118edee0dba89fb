"""Figures as text, as cells with an interval or a spread over seeds, and on axes in a unit that suits their size."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.statistics import Estimate, Spread
from ampsweep.report.tables import Cell
from ampsweep.text import GIB, milliseconds, num_bytes, number, percent, signed

EstimateKind = Literal["ratio", "difference", "percent", "bytes"]
_BINARY: Final = (("GiB", 1.0), ("MiB", 2.0**10), ("KiB", 2.0**20), ("B", 2.0**30))


def value_cell(value: float | None, text: Callable[[float], str], detail: str = "") -> Cell:
    """A figure; absent where there is none."""
    return Cell() if value is None else Cell(text(value), value, detail=detail)


def estimate_cell(of: Estimate | None, kind: EstimateKind, *details: str, n: int | None = None) -> Cell:
    """An estimate, after other details its interval, and its n where that is not the `n` of the row."""
    if of is None:
        return Cell()
    if kind == "difference" and of.value == 0 and of.exact:
        text, ends = "0", "identical"
    elif kind == "bytes":
        text, ends = num_bytes(of.value), ""
    else:
        value, interval = (
            of.ratio_parts if kind == "ratio" else of.text(digits=2, sign=True) if kind == "difference" else of.text()
        )
        text = f"{value}x" if kind == "ratio" else percent(of.value) if kind == "percent" else value
        ends = "" if interval is None else f"[{interval[0]}, {interval[1]}]" + ("%" if kind == "percent" else "")
    counted = "" if n is None or of.n == n else f"n={of.n}"
    return Cell(text, of.value, of.low, of.high, joined(*details, f"{ends} {counted}".strip()))


def spread_cell(of: Spread | None, text: Callable[[float], str], *details: str) -> Cell:
    """A mean over seeds with its standard deviation."""
    if of is None:
        return Cell()
    if of.mean == 0 and not of.sd:
        return Cell("0", 0.0, detail=joined(*details))
    sd = "" if of.sd is None else f"sd {text(of.sd).lstrip('+')}"
    return Cell(text(of.mean), of.mean, detail=joined(sd, *details))


def joined(*details: str) -> str:
    """The parts of a detail that there are."""
    return "; ".join(detail for detail in details if detail)


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
