"""A report as a document: built once from numbers, then shown by renderers that know only the blocks below.

Texts are whole sentences or titles, without markup.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ampsweep.report.figure import Figure
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Scalar, Table, Tone


@dataclass(frozen=True)
class Prose:
    text: str
    kind: Literal["headline", "body", "note"] = "body"  # `headline`: the answer of its section; `note`: less important
    arm: str | None = None  # the arm that an answer names


@dataclass(frozen=True)
class Item:
    """A line of a list, after its label and arm."""

    text: str
    label: str = ""
    arm: str | None = None
    tone: Tone | None = None


@dataclass(frozen=True)
class Items:
    items: tuple[Item, ...]
    title: str = ""


@dataclass(frozen=True)
class Code:
    text: str  # to copy


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document, with or without a title."""

    title: str = ""
    blocks: tuple["Block", ...]
    key: str = ""  # its name in links; empty: no links to it
    arm: str | None = None  # the arm that the section is about
    badge: tuple[str, Tone] | None = None  # a word beside the title
    folded: bool = False  # details: a page folds them, a terminal leaves them out
    on_screen: bool = True  # False: a page shows it, a terminal leaves it out
    kind: Literal["plain", "card"] = "plain"  # `card`: a self-contained part, such as the verdict on a workload


Block = Prose | Items | Table | Figure | Code | Section


def section_of(title: str, key: str, blocks: Iterable[Block], **look: Any) -> Section | None:
    """A section without its empty tables; None without blocks."""
    found = tuple(block for block in blocks if not (isinstance(block, Table) and not block.rows))
    return Section(title=title, key=key, blocks=found, **look) if found else None


def items_of(items: Iterable[Item], title: str = "") -> list[Items]:
    """A list block; none without items."""
    found = tuple(items)
    return [Items(found, title)] if found else []


@dataclass(frozen=True, kw_only=True)
class Document:
    title: str
    subtitle: str = ""
    sections: tuple[Section, ...]
    arms: Mapping[str, ArmStyle] = field(default_factory=dict)  # the arms that it names, in their order
    summary: Mapping[str, Scalar] = field(default_factory=dict)  # the main figures of its W&B run
    data: Any = None  # the data for JSON


def blocks_of(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks and all nested blocks."""
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from blocks_of(block.blocks)


def tables(document: Document) -> list[Table]:
    """The tables as data, those of figures last. Tables of one key are merged, with a column for their section."""
    found: dict[str, list[tuple[str, Table]]] = defaultdict(list)
    walked = list(_walk(document.sections, ""))
    for section, block in walked:
        if isinstance(block, Table) and block.rows:
            found[block.key].append((section, block))
    for section, block in walked:
        if isinstance(block, Figure) and block.table is not None:
            found[block.key].append((section, block.table))
    return [_merged(key, of_key) for key, of_key in found.items()]


def _walk(blocks: Iterable[Block], section: str) -> Iterator[tuple[str, Block]]:
    """Every block with the title of the innermost card around it, or else of the outermost section."""
    for block in blocks:
        if isinstance(block, Section):
            yield from _walk(block.blocks, block.title if block.kind == "card" or not section else section)
        else:
            yield section, block


def _merged(key: str, of_key: Sequence[tuple[str, Table]]) -> Table:
    first = of_key[0][1]
    if len(of_key) == 1:
        return replace(first, key=key)
    columns = list(dict.fromkeys(column for _, table in of_key for column in table.columns))
    rows = []
    for section, table in of_key:
        for row in table.rows:
            cells = dict(zip(table.columns, row.cells, strict=True))
            rows.append(replace(row, cells=(Cell(section), *(cells.get(column, Cell()) for column in columns))))
    return replace(first, key=key, columns=(Column("section"), *columns), rows=tuple(rows))
