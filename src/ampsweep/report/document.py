"""A report as a document: built once from numbers by what knows the kind of report, shown by renderers that do not.

Texts are whole sentences (or titles), plain, in no markup. A renderer knows the blocks below and nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ampsweep.report.figure import Figure
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Scalar, Table, Tone


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str
    kind: Literal["headline", "body", "note"] = "body"
    """`headline`: the answer of its section; `note`: what a reader may pass over."""
    arm: str | None = None
    """The arm that an answer names."""


@dataclass(frozen=True)
class Item:
    """A line of a list, about an arm or a topic that stands before it."""

    text: str
    label: str = ""
    arm: str | None = None
    """Stands before the text, in its colour."""
    tone: Tone | None = None


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Item, ...]
    title: str = ""


@dataclass(frozen=True)
class Code:
    """Text to be copied as it stands."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document; a part without a title is shown without one."""

    title: str = ""
    blocks: tuple["Block", ...]
    key: str = ""
    """Names it in links; empty: nothing links to it."""
    arm: str | None = None
    """The arm that the section is about."""
    badge: tuple[str, Tone] | None = None
    """A word beside the title, such as the standing of the arm."""
    folded: bool = False
    """True for details: a page folds them, a terminal leaves them out."""
    on_screen: bool = True
    """False if a terminal leaves it out although a page shows it."""
    kind: Literal["plain", "card"] = "plain"
    """`card`: a part that stands for itself, such as the verdict on one workload."""


Block = Prose | Items | Table | Figure | Code | Section


def section_of(title: str, key: str, blocks: Iterable[Block], *, on_screen: bool = True) -> Section | None:
    """A section of what there is; None without anything."""
    found = tuple(blocks)
    return Section(title=title, key=key, blocks=found, on_screen=on_screen) if found else None


def items_of(items: Iterable[Item], title: str = "") -> list[Items]:
    """A list of what there is; none without anything."""
    found = tuple(items)
    return [Items(found, title)] if found else []


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str = ""
    sections: tuple[Section, ...]
    arms: Mapping[str, ArmStyle] = field(default_factory=dict)
    """The look of each arm that it names, in their order."""
    summary: Mapping[str, Scalar] = field(default_factory=dict)
    """The main figures by flat names, for a W&B run."""
    data: Any = None
    """The data behind the document, for JSON."""


def blocks_of(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, and all within them."""
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from blocks_of(block.blocks)


def tables(document: Document) -> list[Table]:
    """The tables of a document as data: those of one key together, with the title of its section in a column of its own
    where they are of several. The tables of figures come last.
    """
    found: dict[str, list[tuple[str, Table]]] = {}
    for section, block in _walk(document.sections, ""):
        if isinstance(block, Table):
            found.setdefault(block.key, []).append((section, block))
    for section, block in _walk(document.sections, ""):
        if isinstance(block, Figure) and block.table is not None:
            found.setdefault(block.key, []).append((section, block.table))
    return [_together(key, of_key) for key, of_key in found.items()]


def _walk(blocks: Iterable[Block], section: str) -> Iterator[tuple[str, Block]]:
    """Every block with the title of the innermost section around it that has one of a card, or else of any."""
    for block in blocks:
        if isinstance(block, Section):
            yield from _walk(block.blocks, block.title if block.kind == "card" or not section else section)
        else:
            yield section, block


def _together(key: str, of_key: Sequence[tuple[str, Table]]) -> Table:
    first = of_key[0][1]
    if len(of_key) == 1:
        return replace(first, key=key)
    columns = list(dict.fromkeys(column for _, one in of_key for column in one.columns))
    rows = []
    for section, one in of_key:
        for row in one.rows:
            cells = dict(zip(one.columns, row.cells, strict=True))
            rows.append(replace(row, cells=(Cell(section), *(cells.get(column, Cell()) for column in columns))))
    return replace(first, key=key, columns=(Column("section"), *columns), rows=tuple(rows))
