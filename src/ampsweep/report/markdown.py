"""A document as Markdown."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.tables import Cell, Table

_SPECIAL: Final = re.compile(r"([\\`*<>|#~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
"""Characters that are markup in Markdown; an underscore within a word and a single bracket are not."""
_LINK: Final = re.compile(r"https?://[^\s<>|]+")


def markdown(document: Document) -> str:
    """The document, with tables in place of its figures."""
    head = [f"# {plain(document.title)}", ""]
    head += [plain(document.subtitle), ""] if document.subtitle else []
    return "\n".join([*head, blocks_as_markdown(document.sections)])


def blocks_as_markdown(blocks: Iterable[Block]) -> str:
    return "\n".join(_blocks(blocks, 2)).rstrip() + "\n"


def plain(text: str) -> str:
    """Escape `text` so that Markdown shows it literally, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    for block in blocks:
        match block:
            case Section():
                lines = [*_blocks(block.blocks, level + bool(block.title))]
                if lines and block.title:
                    badge = f" ({plain(block.badge[0])})" if block.badge is not None else ""
                    yield from (f"{'#' * min(level, 6)} {plain(block.title)}{badge}", "")
                yield from lines
            case Prose():
                yield from (f"**{plain(block.text)}**" if block.kind == "headline" else plain(block.text), "")
            case Items():
                yield from (f"**{plain(block.title)}**", "") if block.title else ()
                yield from (*map(_item, block.items), "")
            case Table():
                yield from _table(block.shown())
            case Figure() if block.table is not None:
                yield from (f"{'#' * min(level, 6)} {plain(block.title)}", "", *_table(block.table.shown()))
                yield from (f"{plain(remark)}\n" for remark in block.remarks)
            case Code():
                fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0))
                yield from (fence, block.text, fence, "")


def _item(item: Item) -> str:
    label = f"**{plain(item.label)}** " if item.label else ""
    arm = f"{plain(item.arm)}: " if item.arm is not None else ""
    return f"- {label}{arm}{plain(item.text)}"


def _table(table: Table) -> list[str]:
    headers = ["" if table.kind == "labels" else plain(column.title) for column in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row.cells] for row in table.rows]
    more = [plain(table.more), ""] if table.more else []
    return [*(f"| {' | '.join(cells)} |" for cells in [headers, rule, *rows]), "", *more]


def _cell(cell: Cell) -> str:
    if cell.link is not None and _LINK.fullmatch(cell.link):
        return f"<{cell.link}>"
    between = "" if not cell.detail else " " if cell.detail.startswith("[") else ", "
    return plain(f"{cell.text}{between}{cell.detail}")
