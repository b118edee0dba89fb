"""A document on standard output: for people, as JSON of its data, or as CSV of its tables."""

import csv
import io
import json
from collections.abc import Callable
from typing import Final

from ampsweep.finding import as_data
from ampsweep.report.console import show
from ampsweep.report.document import Document, tables
from ampsweep.report.markdown import markdown
from ampsweep.report.tables import Cell, Scalar, Table
from ampsweep.report.terminal import Terminal

CONSOLE: Final = "console"
_ENDS: Final[dict[str, Callable[[Cell], Scalar]]] = {
    "": lambda cell: cell.data,
    "_low": lambda cell: cell.low,
    "_high": lambda cell: cell.high,
}


def as_json(document: Document) -> str:
    """The document's data as strict JSON (no NaN); figures that were not measured are null."""
    return json.dumps(as_data(document.data), indent=1, allow_nan=False, default=str) + "\n"


def as_csv(document: Document) -> str:
    """All tables, each after a line `# key`, with all digits and with columns for intervals."""
    out = io.StringIO()
    for table in tables(document):
        out.write(f"# {table.key}\n")
        writer = csv.DictWriter(out, list(_data_columns(table)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(as_rows(table))
        out.write("\n")
    return out.getvalue()


def as_rows(table: Table) -> list[dict[str, Scalar]]:
    """Each row as column name -> value; the ends of intervals have the suffixes `_low` and `_high`."""
    columns = _data_columns(table)
    return [{name: read(row.cells[place]) for name, (place, read) in columns.items()} for row in table.rows]


def _data_columns(table: Table) -> dict[str, tuple[int, Callable[[Cell], Scalar]]]:
    """Name -> the place in a row and the function that reads its cell."""
    found: dict[str, tuple[int, Callable[[Cell], Scalar]]] = {}
    for place, column in enumerate(table.columns):
        has_ends = any(row.cells[place].low is not None for row in table.rows)
        name = column.key or column.title
        found |= {name + end: (place, read) for end, read in _ENDS.items() if not end or has_ends}
    return found


FORMATS: Final[dict[str, Callable[[Document], str]]] = {"json": as_json, "csv": as_csv, "markdown": markdown}
"""The formats besides the console's; each takes any document."""


def formats() -> tuple[str, ...]:
    """The formats of a command line, the default first."""
    return CONSOLE, *FORMATS


def put_out(document: Document, chosen: str = CONSOLE) -> None:
    if chosen == CONSOLE:
        show(document, Terminal())
    else:
        print(FORMATS[chosen](document), end="")
