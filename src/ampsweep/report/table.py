"""A table of texts, for every renderer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Headers, which columns are numbers (and stand to the right), and rows of cells."""

    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headers) == len(self.numeric) for row in self.rows), self.headers

    def without(self, headers: Collection[str]) -> "Table":
        """The table without the columns under these headers."""
        return self.of([index for index, header in enumerate(self.headers) if header not in headers])

    def of(self, columns: Sequence[int]) -> "Table":
        """The table of these columns."""
        rows = tuple(tuple(row[index] for index in columns) for row in self.rows)
        headers, numeric = (tuple(one[index] for index in columns) for one in (self.headers, self.numeric))
        return Table(tuple(map(str, headers)), tuple(map(bool, numeric)), rows)


def figures_table(first: str, headers: list[str], rows: list[tuple[str, ...]]) -> Table:
    """A table whose first column names what a row is about and whose others are figures."""
    return Table((first, *headers), (False, *(True for _ in headers)), tuple(rows))


def without_empty_columns(table: Table) -> Table:
    """The table without the columns in which no row has anything but `-`."""
    kept = [index for index in range(len(table.headers)) if any(row[index] not in ("-", "") for row in table.rows)]
    return table.of(kept)
