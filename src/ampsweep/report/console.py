"""A document on a terminal, or in a pipe or log file."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from ampsweep.report.document import Block, Code, Document, Items, Prose, Section
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Row, Table

PLAIN_WIDTH: Final = 110
"""Least width, in characters, of output that goes to no terminal."""
_UNBOUNDED: Final = 10_000
_MIN_HEADER: Final = 11
"""Characters of a header's line, as far as words allow."""
_TONES: Final = {"good": ("▲ ", "green"), "bad": ("▼ ", "red"), "even": ("= ", ""), "open": ("? ", "yellow")}
"""Sign and style of words that are good news, bad news, no news, or leave the question open."""
_MIN_BROKEN: Final = 12
_MAX_BROKEN: Final = 40
"""Characters of a list that is shown one below the other; prose is longer."""
_BRIEF_LINES: Final = 4
"""Lines of a section in brief beside its table's rows: title, headers, rule and answer."""


def show(document: Document, console: Console) -> None:
    """Print the document without what it folds and without its figures, the answer of each section last.

    A table too wide for the terminal is turned, a column a row. A console that is no terminal is widened so that no
    figure is folded: a log file has no edge.
    """
    console.print(Text(f"{document.title}{f' ({document.subtitle})' if document.subtitle else ''}", style="bold"))
    _show(document.sections, console, document.arms)


def _show(blocks: Iterable[Block], console: Console, arms: Mapping[str, ArmStyle]) -> None:
    answers: list[Prose] = []
    before: Block | None = None
    for block in blocks:
        match block:
            case Section() if _is_shown(block):
                if block.title:
                    badge = Text() if block.badge is None else Text("  ").append_text(_toned(*block.badge))
                    console.print(Text.assemble("\n", (block.title, "bold"), badge), soft_wrap=_is_file(console))
                _show(block.blocks, console, arms)
            case Prose() if block.kind == "headline" or (block.kind == "body" and before in answers):
                answers.append(block)
            case Prose():
                console.print(
                    Text(block.text, style="dim" if block.kind == "note" else ""), soft_wrap=_is_file(console)
                )
            case Items():
                if block.title:
                    console.print(Text(block.title, style="dim"))
                grid = _items(block, arms)
                with _at_least(console, _width(grid, console)):
                    console.print(grid)
            case Table():
                _print_table(block.shown(), console, arms)
            case Code():  # never folded, so that it can be copied
                console.print(Text(f"    {block.text}", style="cyan"), soft_wrap=True)
        before = block
    for answer in answers:
        console.print(Text(answer.text, style="bold"), soft_wrap=_is_file(console))


def _is_shown(section: Section) -> bool:
    """True unless it is folded, or nothing in it is for a terminal."""
    return section.on_screen and not section.folded and any(map(_has_text, section.blocks))


def _has_text(block: Block) -> bool:
    return _is_shown(block) if isinstance(block, Section) else isinstance(block, Prose | Items | Table | Code)


def _items(of: Items, arms: Mapping[str, ArmStyle]) -> RichTable:
    """A line an item; a label is named once."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    has_labels, has_arms = (any(getattr(item, name) for item in of.items) for name in ("label", "arm"))
    before = None
    for item in of.items:
        label = Text("" if item.label == before else item.label, style="dim")
        arm = Text(item.arm or "", style=_colour(item.arm, arms))
        text = Text(item.text) if item.tone is None else _toned(item.text, item.tone)
        grid.add_row(*([label] if has_labels else []), *([arm] if has_arms else []), text)
        before = item.label
    return grid


def _print_table(table: Table, console: Console, arms: Mapping[str, ArmStyle]) -> None:
    if not table.rows:
        return
    drawn = _labels(table) if table.kind == "labels" else _rows(table, arms)
    width = _width(drawn, console)
    with _at_least(console, max(PLAIN_WIDTH, width)):
        if width > console.width and table.kind == "plain" and len(table.rows) < len(table.columns):
            drawn = min(drawn, _turned(table, arms), key=lambda one: _width(one, console))
        console.print(drawn)
    if table.more:
        console.print(Text(table.more, style="dim"))


def _labels(table: Table) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for row in table.rows:
        grid.add_row(*(Text(cell.text, style="" if place else "dim") for place, cell in enumerate(row.cells)))
    return grid


def _rows(table: Table, arms: Mapping[str, ArmStyle]) -> RichTable:
    drawn = _empty_table()
    for column in table.columns:
        drawn.add_column(
            Text(_in_lines(column.title)),
            justify="right" if column.numeric else "left",
            overflow="fold",
            min_width=max(map(len, _in_lines(column.title).split("\n"))),  # else rich cuts a header
        )
    for row in table.rows:
        drawn.add_row(
            *(_cell(cell, column, row, arms, "\n") for cell, column in zip(row.cells, table.columns, strict=True))
        )
    return drawn


def _turned(table: Table, arms: Mapping[str, ArmStyle]) -> RichTable:
    """The same table with a row a column, for a narrow terminal."""
    drawn = _empty_table()
    drawn.add_column("")
    name, *figures = table.columns
    for row in table.rows:
        drawn.add_column(_cell(row.cells[0], name, row, arms, "\n"), justify="right", overflow="fold")
    for place, column in enumerate(figures, start=1):
        drawn.add_row(Text(column.title), *(_cell(row.cells[place], column, row, arms, "\n") for row in table.rows))
    return drawn


def _cell(cell: Cell, column: Column, row: Row, arms: Mapping[str, ArmStyle], separator: str | None) -> Text:
    """A cell, its detail after the separator (None: without), over as many lines as keep its column narrow."""
    value = cell.text
    if separator == "\n" and not column.numeric:
        value = value.replace("+", "\n+") if row.arm == cell.text else value
        value = value.replace(", ", ",\n") if _MIN_BROKEN < len(value) < _MAX_BROKEN else value
    text = Text(value, style=_colour(cell.text, arms)) if cell.tone is None else _toned(value, cell.tone)
    if cell.detail and separator is not None:
        detail = cell.detail.replace("; ", "\n") if separator == "\n" else cell.detail
        text.append(separator + detail, style="dim")
    return text


@dataclass(frozen=True)
class Brief:
    """The answer of each card of a document and its first table, in the width and height that a live display has.

    Columns are left out by rank, then details, then rows and cards, which are counted.
    """

    document: Document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits (rich's protocol)."""
        cards = list(_cards(self.document.sections))
        room = options.max_height - 2  # a line for the runs so far, and one for what is left out
        yield Text(f"{self.document.subtitle} so far", style="dim", no_wrap=True, overflow="ellipsis")
        left_out = []
        for number, card in enumerate(cards):
            height, shown = self._card(card, room, console, options)
            if height > room:
                left_out.append(f"{len(cards) - number} more")
                break
            yield shown
            room -= height
        if left_out:
            yield Text(f"and {', '.join(left_out)}", style="dim")

    def _card(self, card: Section, room: int, console: Console, options: ConsoleOptions) -> tuple[int, RenderableType]:
        """The fullest form of a card that fits, with its number of lines."""
        answer = next((one.text for one in card.blocks if isinstance(one, Prose) and one.kind == "headline"), "")
        parts: list[RenderableType] = [Text(card.title, style="bold", no_wrap=True, overflow="ellipsis")]
        table = next((one for one in card.blocks if isinstance(one, Table)), None)
        height = 1
        if table is not None and room > _BRIEF_LINES:
            for lines, drawn in _forms(table.shown(), self.document.arms, room - _BRIEF_LINES):
                height = lines + _BRIEF_LINES - 1
                fits = console.measure(drawn, options=options.update(width=_UNBOUNDED)).maximum <= options.max_width
                if fits and height < room:
                    break
            parts.append(drawn)
        wrapped = Text(answer, style="dim").wrap(console, options.max_width)
        return height + len(wrapped), Group(*parts, *wrapped)


def _cards(blocks: Iterable[Block]) -> Iterator[Section]:
    for block in blocks:
        if isinstance(block, Section) and _is_shown(block):
            if block.kind == "card":
                yield block
            else:
                yield from _cards(block.blocks)


def _forms(table: Table, arms: Mapping[str, ArmStyle], room: int) -> Iterator[tuple[int, RichTable]]:
    """A table from everything to the least, with the lines of its rows: details beside figures, below them, or none."""
    ranks = sorted({column.rank for column in table.columns}, reverse=True)
    rows = table.rows[: max(room, 1)]
    for separator, height in ((" ", len(rows)), ("\n", 2 * len(rows)), (None, len(rows))):
        for rank in ranks:
            kept = table.of([place for place, column in enumerate(table.columns) if column.rank <= rank])
            drawn = _empty_table()
            for column in kept.columns:
                drawn.add_column(Text(column.title), justify="right" if column.numeric else "left", no_wrap=True)
            for row in kept.rows[: len(rows)]:
                cells = zip(row.cells, kept.columns, strict=True)
                drawn.add_row(*(_cell(cell, column, row, arms, separator) for cell, column in cells))
            yield height, drawn


def _in_lines(title: str) -> str:
    """A header over as many lines as keep its column narrow, without cutting a word."""
    lines = [""]
    for word in title.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _MIN_HEADER:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _toned(text: str, tone: str) -> Text:
    sign, style = _TONES[tone]
    return Text(f"{sign}{text}", style=style)


def _colour(arm: str | None, arms: Mapping[str, ArmStyle]) -> str:
    return arms[arm].colour if arm is not None and arm in arms else ""


def _empty_table() -> RichTable:
    return RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def _width(table: RichTable, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum


def _is_file(console: Console) -> bool:
    return not console.is_terminal


@contextmanager
def _at_least(console: Console, width: int) -> Iterator[None]:
    """Give a console that is no terminal at least this width for a while."""
    before = console.width
    if not console.is_terminal:
        console.width = max(before, width)
    try:
        yield
    finally:
        console.width = before
