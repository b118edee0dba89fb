"""A table of a report: cells that are data and text, for every renderer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

Scalar = str | int | float | bool | None
Tone = Literal["good", "bad", "even", "open"]
"""The news in a word: good, bad, no difference, or an open question."""
ABSENT: Final = "-"


def scalar_text(value: Scalar) -> str:
    """A datum as it stands in a config."""
    return ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Cell:
    """A datum as people read it, and as data."""

    text: str = ABSENT
    value: Scalar = None
    """The datum itself, in the unit of its column; None where the text is all there is."""
    low: float | None = None
    high: float | None = None
    """The interval of the value, where it has one."""
    detail: str = ""
    """Text below or after it (interval, share, spread), in parts at '; '."""
    tone: Tone | None = None
    link: str | None = None

    @property
    def data(self) -> Scalar:
        """The value, or the text where that is the datum; None where nothing was measured."""
        return self.value if self.value is not None else None if self.text in (ABSENT, "") else self.text


def count_cell(count: int) -> Cell:
    return Cell(str(count), count)


@dataclass(frozen=True)
class Column:
    """A column: its header, the name of its data (with the unit), and the way it is shown."""

    title: str
    key: str = ""
    """The name of the column's data, such as `peak_memory_bytes`; empty: its title."""
    numeric: bool = False
    rank: int = 0
    """The order in which columns are dropped if there is no room: the highest rank first, rank 0 never."""
    optional: bool = False
    """Left out of a table in which no row has a value."""
    data_only: bool = False
    """In the data of the table (CSV, W&B), where people read the figure in the detail of another column."""


@dataclass(frozen=True)
class Row:
    """A row with what it belongs to, by which a page hides it and a renderer colours it."""

    cells: tuple[Cell, ...]
    arm: str | None = None
    seed: int | None = None
    facts: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; the first column names the row."""

    key: str
    """Names the table in files: lower case, unique within a document or the same for tables that continue it."""
    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    more: str = ""
    """A sentence on rows that are left out."""
    kind: Literal["plain", "labels"] = "plain"
    """`labels`: names and values, without headers."""

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.rows), self.key

    def shown(self) -> "Table":
        """The table as people read it: without data alone, and without optional columns in which no row has a value."""
        return self.of(
            [
                place
                for place, column in enumerate(self.columns)
                if not column.data_only
                and (not column.optional or any(row.cells[place].text not in (ABSENT, "") for row in self.rows))
            ]
        )

    def of(self, places: Sequence[int]) -> "Table":
        """The table of these columns."""
        rows = (replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))


Item = TypeVar("Item")
Columns = Sequence[tuple[Column, Callable[[Item], Cell]]]
"""Columns, each with the function that makes its cell of what a row is about."""


def table_of(key: str, columns: Columns[Item], items: Iterable[Item], arm: Callable[[Item], str]) -> Table:
    """A table with a row an item; `arm` tells the arm that it belongs to."""
    rows = (Row(tuple(cell(item) for _, cell in columns), arm=arm(item)) for item in items)
    return Table(key=key, columns=tuple(column for column, _ in columns), rows=tuple(rows))


def text_table(key: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """A table of texts; the first cell of a row is its arm, if its header is `arm`."""
    of_arms = headers[0] == "arm"
    return Table(
        key=key,
        title=title,
        columns=tuple(map(Column, headers)),
        rows=tuple(Row(tuple(map(Cell, row)), arm=row[0] if of_arms else None) for row in rows),
    )
