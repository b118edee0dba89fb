"""Cells of figures: a value, an estimate with its interval, or a spread over seeds, as text and as data."""

from collections.abc import Callable
from typing import Literal

from ampsweep.analysis.statistics import Estimate, Spread
from ampsweep.report.tables import Cell
from ampsweep.text import num_bytes, percent

EstimateKind = Literal["ratio", "difference", "percent", "bytes"]


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
