"""A document on a terminal, or in a pipe or log file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import indent, wrap
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from ampsweep.report.document import Block, Code, Document, Items, Prose, Section
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import escaped

_UNBOUNDED: Final = 10_000
_MIN_HEADER: Final = 11  # characters to which headers are wrapped, unless a word is longer
_TONES: Final = {"good": ("▲ ", "green"), "bad": ("▼ ", "red"), "even": ("= ", ""), "open": ("? ", "yellow")}
_BETWEEN: Final = 2  # characters between two columns
_LEAST_TEXT: Final = 20  # characters to which texts are wrapped before their column moves to another part of the table


class Terminal(Console):
    """A console without markup (`[red]`) that escapes control characters.

    Names come from configs and, in a report of other people's runs, from a server.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text, keeps="\n\t"), segment.style)


def show(document: Document, console: Console) -> None:
    """Print the document without folded parts and figures; log files do not wrap."""
    if not console.is_terminal:
        console.width = _UNBOUNDED
    console.print(Text(f"{document.title}{f' ({document.subtitle})' if document.subtitle else ''}", style="bold"))
    _show(document.sections, console, document.arms)


def _show(blocks: Iterable[Block], console: Console, arms: Mapping[str, ArmStyle]) -> None:
    for block in blocks:
        match block:
            case Section() if _is_shown(block):
                if block.title:
                    badge = Text() if block.badge is None else Text("  ").append_text(_toned(*block.badge))
                    console.print(Text.assemble("\n", (block.title, "bold"), badge))
                _show(block.blocks, console, arms)
            case Prose():
                console.print(Text(block.text, style={"note": "dim", "headline": "bold"}.get(block.kind, "")))
            case Items():
                if block.title:
                    console.print(Text(block.title, style="dim"))
                console.print(_items(block, arms))
            case Table():
                _print_table(block.shown(), console, arms)
            case Code():  # not wrapped, so that it can be copied
                console.print(Text(indent(block.text, "    "), style="cyan"), soft_wrap=True)


def _is_shown(block: Block) -> bool:
    if isinstance(block, Section):
        return block.on_screen and not block.folded and any(map(_is_shown, block.blocks))
    return isinstance(block, Prose | Items | Table | Code)


def _items(of: Items, arms: Mapping[str, ArmStyle]) -> RichTable:
    rows = []
    has_labels, has_arms = (any(getattr(item, name) for item in of.items) for name in ("label", "arm"))
    before = None
    for item in of.items:
        label = Text("" if item.label == before else item.label, style="dim")
        arm = Text((item.arm or "").replace(", ", ",\n"), style=_colour(item.arm, arms))
        text = Text(item.text) if item.tone is None else _toned(item.text, item.tone)
        rows.append([*([label] if has_labels else []), *([arm] if has_arms else []), text])
        before = item.label
    return _grid(rows)


def _print_table(table: Table, console: Console, arms: Mapping[str, ArmStyle]) -> None:
    if table.kind == "labels":
        rows = ((Text(name.text, style="dim"), Text(value.text)) for name, value in (row.cells for row in table.rows))
        console.print(_grid(rows))
    else:
        texts = [
            [Text(_in_lines(column.title)), *(_cell(row.cells[place], column, row, arms) for row in table.rows)]
            for place, column in enumerate(table.columns)
        ]
        for places in _parts(table, texts, console):
            console.print(_drawn([(table.columns[place], texts[place]) for place in places]))
    if table.more:
        console.print(Text(table.more, style="dim"))


def _parts(table: Table, columns: Sequence[Sequence[Text]], console: Console) -> Iterator[list[int]]:
    """Places of columns in as few parts as fit the width, each with the first; texts are wrapped before that."""
    widths = [max(console.measure(text).maximum for text in texts) for texts in columns]
    places, taken = [0], widths[0]
    for place, column in enumerate(table.columns[1:], start=1):
        needed = _BETWEEN + (widths[place] if column.numeric else min(widths[place], _LEAST_TEXT))
        if taken + needed > console.width and len(places) > 1:
            yield places
            places, taken = [0], widths[0]
        places.append(place)
        taken += needed
    yield places


def _grid(rows: Iterable[Sequence[Text]]) -> RichTable:
    """Rows without lines; words longer than their column, such as paths, are wrapped."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for row in rows:
        for _ in row[len(grid.columns) :]:
            grid.add_column(overflow="fold")
        grid.add_row(*row)
    return grid


def _drawn(columns: Sequence[tuple[Column, Sequence[Text]]]) -> RichTable:
    """Columns, each with its title and cells."""
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column, (title, *cells) in columns:
        words = [word for cell in cells for word in cell.plain.split() if len(word) < _LEAST_TEXT]
        drawn.add_column(
            title,
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=column.numeric,
            min_width=max(map(len, [*title.plain.split("\n"), *words])),  # else rich cuts headers and words
        )
    for row in zip(*(cells for _, (_, *cells) in columns), strict=True):
        drawn.add_row(*row)
    return drawn


def _cell(cell: Cell, column: Column, row: Row, arms: Mapping[str, ArmStyle]) -> Text:
    """A cell in several lines, which keep its column narrow."""
    value = cell.text
    if row.arm == cell.text and not column.numeric:
        value = value.replace("+", "\n+")
    text = Text(value, style=_colour(cell.text, arms)) if cell.tone is None else _toned(value, cell.tone)
    if cell.detail:
        text.append("\n" + cell.detail.replace("; ", "\n"), style="dim")
    return text


def _in_lines(title: str) -> str:
    return "\n".join(wrap(title, _MIN_HEADER, break_long_words=False, break_on_hyphens=False))


def _toned(text: str, tone: str) -> Text:
    sign, style = _TONES[tone]
    return Text(f"{sign}{text}", style=style)


def _colour(arm: str | None, arms: Mapping[str, ArmStyle]) -> str:
    return arms[arm].colour if arm is not None and arm in arms else ""
