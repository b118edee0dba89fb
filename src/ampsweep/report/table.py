"""A table of texts, for every renderer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Headers, which columns are numbers (and stand to the right), and rows of cells."""

    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headers) == len(self.numeric) for row in self.rows), self.headers


def figures_table(first: str, headers: list[str], rows: list[tuple[str, ...]]) -> Table:
    """A table whose first column names what a row is about and whose others are figures."""
    return Table((first, *headers), (False, *(True for _ in headers)), tuple(rows))
