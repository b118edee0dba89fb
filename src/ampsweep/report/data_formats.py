"""A document on standard output: for people, as JSON of its data, as CSV of its tables, or as a page."""

import csv
import io
import json
from collections.abc import Callable
from typing import Final

from ampsweep.finding import as_data
from ampsweep.report.console import Terminal, show
from ampsweep.report.document import Document, tables
from ampsweep.report.markdown import markdown
from ampsweep.report.tables import Scalar, Table

CONSOLE: Final = "console"


def as_json(document: Document) -> str:
    """The document's data as strict JSON (no NaN); figures that were not measured are null."""
    return json.dumps(as_data(document.data), indent=1, allow_nan=False, default=str) + "\n"


def as_csv(document: Document) -> str:
    """All tables, each after a line `# key`, with all digits and with columns for intervals."""
    out = io.StringIO()
    for table in tables(document):
        rows = as_rows(table)
        out.write(f"# {table.key}\n")
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        out.write("\n")
    return out.getvalue()


def as_rows(table: Table) -> list[dict[str, Scalar]]:
    """Each row as column name -> value; the ends of intervals have the suffixes `_low` and `_high`."""
    of_columns = zip(*(row.cells for row in table.rows), strict=True)
    with_ends = [any(cell.low is not None for cell in cells) for cells in of_columns]
    rows = []
    for row in table.rows:
        data: dict[str, Scalar] = {}
        for column, cell, has_ends in zip(table.columns, row.cells, with_ends, strict=True):
            name = column.key or column.title
            data[name] = cell.data
            if has_ends:
                data |= {f"{name}_low": cell.low, f"{name}_high": cell.high}
        rows.append(data)
    return rows


def _as_page(document: Document) -> str:
    from ampsweep.report.html import html  # slow: imports plotly

    return html(document)


FORMATS: Final[dict[str, Callable[[Document], str]]] = {
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
    "html": _as_page,
}
"""The formats besides the console's; each takes any document."""


def formats() -> tuple[str, ...]:
    """The formats of a command line, the default first."""
    return CONSOLE, *FORMATS


def put_out(document: Document, chosen: str = CONSOLE) -> None:
    if chosen == CONSOLE:
        show(document, Terminal())
    else:
        print(FORMATS[chosen](document), end="")
