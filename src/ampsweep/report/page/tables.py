"""Tables of the page."""

from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.report.page.markup import Child, Markup, arm_name, name, tag
from ampsweep.report.palette import ArmStyle
from ampsweep.report.table import Table

_OF_ARMS: Final = ("arm", "from", "to")
"""Headers of columns of arms."""


def html_table(
    table: Table,
    styles: Mapping[str, ArmStyle],
    *,
    caption: str,
    class_: str = "",
    attributes: list[dict[str, str]] | None = None,
) -> Markup:
    """A table of texts; arms under the headers of arms get their colours."""
    kinds = list(zip(table.headers, table.numeric, strict=True))
    rows = [
        [
            cell_of_arm(cell, styles) if header in _OF_ARMS else cell if numeric else name(cell)
            for (header, numeric), cell in zip(kinds, row, strict=True)
        ]
        for row in table.rows
    ]
    return grid(table.headers, table.numeric, rows, caption=caption, class_=class_, attributes=attributes)


def grid(
    headers: tuple[str, ...],
    numeric: tuple[bool, ...],
    rows: Sequence[Sequence[str]],
    *,
    caption: str,
    class_: str = "",
    attributes: list[dict[str, str]] | None = None,
) -> Markup:
    """A table of cells (text or markup) in a box that scrolls where it is too wide; the first column heads its row."""
    head = [
        tag("th", header, scope="col", class_="number" if right else None)
        for header, right in zip(headers, numeric, strict=True)
    ]
    body = [
        tag("tr", *_cells(row, numeric), **(attributes[index] if attributes else {})) for index, row in enumerate(rows)
    ]
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
    )
    return tag("div", table, class_=f"scroll {class_}".strip(), role="region", aria_label=caption, tabindex="0")


def cell_of_arm(arm: str, styles: Mapping[str, ArmStyle]) -> Markup:
    return arm_name(arm, styles[arm]) if arm in styles else name(arm)


def details(summary: Child, *content: Child, open_: bool = False, class_: str | None = None) -> Markup:
    """Content that is folded away until it is asked for."""
    return tag("details", tag("summary", summary), *content, open=open_, class_=class_)


def _cells(row: Sequence[str], numeric: tuple[bool, ...]) -> list[Markup]:
    first, *rest = row
    cells = [tag("th", first, scope="row", class_="number" if numeric[0] else None)]
    return cells + [
        tag("td", cell, class_="number" if right else None) for cell, right in zip(rest, numeric[1:], strict=True)
    ]
