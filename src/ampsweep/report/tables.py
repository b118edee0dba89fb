"""Tables of reports for every renderer: cells hold data and text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from ampsweep.text import GIB, milliseconds, num_bytes, number, percent

if TYPE_CHECKING:  # a training that prints tables does not wait for SciPy
    from ampsweep.analysis.statistics import Estimate, Spread

Scalar = str | int | float | bool | None
Tone = Literal["good", "bad", "even", "open"]  # good news, bad news, no difference, or an open question
ABSENT: Final = "-"
MAX_ROWS: Final = 1_000  # rows of a table that are shown
COMPARISON: Final = "comparison"  # the stem of a comparison's files
JSON_NAME: Final = f"{COMPARISON}.json"  # the file without such limits
HTML_NAME: Final = f"{COMPARISON}.html"


def scalar_text(value: Scalar) -> str:
    """A value as in a config."""
    return ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Cell:
    """A value as people read it, and as data."""

    text: str = ABSENT
    value: Scalar = None  # in the unit of its column; None if there is only a text
    low: float | None = None
    high: float | None = None  # the interval of the value, if any
    detail: str = ""  # text below or after it (interval, share, spread), in parts separated by '; '
    tone: Tone | None = None
    link: str | None = None
    shown_only: bool = False  # in no data, as a figure that nothing should be concluded from

    @property
    def data(self) -> Scalar:
        """The value, or else the text; None if nothing was measured."""
        if self.shown_only:
            return None
        return self.value if self.value is not None else None if self.text in (ABSENT, "") else self.text


def count_cell(count: int) -> Cell:
    return Cell(str(count), count)


@dataclass(frozen=True)
class Column:
    title: str
    key: str = ""  # the name of the column's data with the unit, such as `peak_memory_bytes`; empty: the title
    numeric: bool = False
    optional: bool = False  # left out if no row has a value
    data_only: bool = False
    """Only in the data of the table (CSV, W&B): people read the figure in the detail of another column."""


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    arm: str | None = None  # the arm it belongs to: a page can hide it, and renderers colour it


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; the first column names the row."""

    key: str  # its name in files: lower case; tables of one key are parts of one
    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    more: str = ""  # a sentence on rows that are left out
    kind: Literal["plain", "labels"] = "plain"  # `labels`: names and values, without headers

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.rows), self.key

    def shown(self) -> "Table":
        """The table for people, without `data_only` and empty optional columns."""
        known = {place for row in self.rows for place, cell in enumerate(row.cells) if cell.text not in (ABSENT, "")}
        columns = [(place, column) for place, column in enumerate(self.columns) if not column.data_only]
        return self.of([place for place, column in columns if not column.optional or place in known])

    def of(self, places: Sequence[int]) -> "Table":
        """The table of these columns."""
        rows = (replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))


Item = TypeVar("Item")
Columns = Sequence[tuple[Column, Callable[[Item], Cell]]]
"""Columns, each with the function that makes its cell from the item of a row."""


def table_of(
    key: str,
    columns: Columns[Item],
    items: Iterable[Item],
    arm: Callable[[Item], str | None] = lambda item: None,
    *,
    title: str = "",
    what: str = "rows",
) -> Table:
    """A table with a row for each item, up to `MAX_ROWS`; `what` names the items."""
    known = list(items)
    rows = (Row(tuple(cell(item) for _, cell in columns), arm=arm(item)) for item in known[:MAX_ROWS])
    num_left = len(known) - MAX_ROWS
    return Table(
        key=key,
        title=title,
        columns=tuple(column for column, _ in columns),
        rows=tuple(rows),
        more=f"{num_left:,} more {what} are in {JSON_NAME}." if num_left > 0 else "",
    )


def text_column(title: str, text: Callable[[Item], str], **column: Any) -> tuple[Column, Callable[[Item], Cell]]:
    return Column(title, **column), lambda item: Cell(text(item))


def value_column(
    title: str, key: str, text: Callable[[float], str], **column: Any
) -> tuple[Column, Callable[[Any], Cell]]:
    """A numeric column for the attribute `key` of the items."""
    return Column(title, key, numeric=True, **column), lambda item: value_cell(getattr(item, key), text)


def text_table(key: str, headers: Sequence[str], rows: Iterable[Sequence[str]], **more: str) -> Table:
    """A table of texts; a column `arm` has the arms of the rows."""
    columns = [text_column(header, itemgetter(place)) for place, header in enumerate(headers)]
    return table_of(key, columns, rows, lambda row: dict(zip(headers, row, strict=True)).get("arm"), **more)


EstimateKind = Literal["ratio", "difference", "percent", "bytes"]
_BINARY: Final = (("GiB", 1.0), ("MiB", 2.0**10), ("KiB", 2.0**20), ("B", 2.0**30))


def value_cell(value: float | None, text: Callable[[float], str], detail: str = "") -> Cell:
    return Cell() if value is None else Cell(text(value), value, detail=detail)


def estimate_cell(of: "Estimate | None", kind: EstimateKind, *details: str, n: int | None = None) -> Cell:
    """An estimate with details, its interval, and its n unless that equals `n`, the row's."""
    if of is None:
        return Cell()
    value, interval = of.ratio_parts if kind == "ratio" else of.text()
    if kind == "difference":
        value, interval = of.text(digits=2, sign=True)
    text = {"ratio": f"{value}x", "difference": value, "percent": percent(of.value), "bytes": num_bytes(of.value)}[kind]
    ends = "" if kind == "bytes" or interval is None else f"[{interval[0]}, {interval[1]}]"
    if ends and kind == "percent":
        ends += "%"
    if kind == "difference" and of.value == 0 and of.exact:
        text, ends = "0", "identical"
    counted = "" if n is None or of.n == n else f"n={of.n}"
    detail = "; ".join(filter(None, (*details, f"{ends} {counted}".strip())))
    return Cell(text, of.value, of.low, of.high, detail)


def spread_cell(of: "Spread | None", text: Callable[[float], str]) -> Cell:
    """A mean over seeds with its standard deviation."""
    if of is None:
        return Cell()
    if of.mean == 0 and not of.sd:
        return Cell("0", 0.0)
    return Cell(text(of.mean), of.mean, detail="" if of.sd is None else f"sd {text(of.sd).lstrip('+')}")


_TEXTS: Final = {"samples": "{:.0f}".format, "ms": milliseconds, "%": percent}


def quantity(value: float, unit: str) -> str:
    """A value of a metric with its unit, in the digits that every report uses.

    >>> quantity(0.5, "GiB"), quantity(12.34, "ms"), quantity(7.0, "%"), quantity(1.0, "")
    ('512 MiB', '12.3 ms', '7.0%', '1.00')
    >>> quantity(40.0, "samples")
    '40'
    """
    if unit == "GiB":
        return num_bytes(value * GIB)
    if unit in _TEXTS:
        return _TEXTS[unit](value)
    return f"{number(value)} {unit}".rstrip()


def quantity_cell(value: float | None, unit: str) -> Cell:
    return Cell() if value is None else Cell(quantity(value, unit), value)


class AxisUnit(NamedTuple):
    """The unit of an axis, and the factor that converts a metric's values to it."""

    factor: float
    unit: str


def axis_unit(values: Iterable[float], unit: str) -> AxisUnit:
    """The unit of an axis for `values`: bytes in the largest unit that the largest value reaches."""
    if unit != "GiB":
        return AxisUnit(1.0, unit)
    largest = max((abs(value) for value in values), default=0.0)
    name, factor = next(((name, factor) for name, factor in _BINARY if largest * factor >= 1), _BINARY[0])
    return AxisUnit(factor, name)
