"""A document on a terminal, or in a pipe or log file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ampsweep.report.document import Block, Code, Document, Items, Prose, Section
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Row, Table

_UNBOUNDED: Final = 10_000
_MIN_HEADER: Final = 11  # characters to which headers are wrapped, unless a word is longer
_TONES: Final = {"good": ("▲ ", "green"), "bad": ("▼ ", "red"), "even": ("= ", ""), "open": ("? ", "yellow")}
_BETWEEN: Final = 2  # characters between two columns
_LEAST_TEXT: Final = 20  # characters to which texts are wrapped before their column moves to another part of the table


def show(document: Document, console: Console) -> None:
    """Print the document without folded parts and figures, the answer of each section last; log files do not wrap."""
    if not console.is_terminal:
        console.width = _UNBOUNDED
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
                    console.print(Text.assemble("\n", (block.title, "bold"), badge))
                _show(block.blocks, console, arms)
            case Prose() if block.kind == "headline" or (block.kind == "body" and before in answers):
                answers.append(block)
            case Prose():
                console.print(Text(block.text, style="dim" if block.kind == "note" else ""))
            case Items():
                if block.title:
                    console.print(Text(block.title, style="dim"))
                console.print(_items(block, arms))
            case Table():
                _print_table(block.shown(), console, arms)
            case Code():  # not wrapped, so that it can be copied
                console.print(Text(f"    {block.text}", style="cyan"), soft_wrap=True)
        before = block
    for answer in answers:
        console.print(Text(answer.text, style="bold"))


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
    if not table.rows:
        return
    if table.kind == "labels":
        rows = ((Text(name.text, style="dim"), Text(value.text)) for name, value in (row.cells for row in table.rows))
        console.print(_grid(rows))
    else:
        for part in _parts(table, console, arms):
            console.print(_drawn(part, arms))
    if table.more:
        console.print(Text(table.more, style="dim"))


def _parts(table: Table, console: Console, arms: Mapping[str, ArmStyle]) -> Iterator[Table]:
    """The table in as few parts as fit the width, each with the first column; texts are wrapped before that."""
    widths = [_column_width(table, place, arms) for place in range(len(table.columns))]
    places, taken = [0], widths[0]
    for place, column in enumerate(table.columns[1:], start=1):
        needed = _BETWEEN + (widths[place] if column.numeric else min(widths[place], _LEAST_TEXT))
        if taken + needed > console.width and len(places) > 1:
            yield table.of(places)
            places, taken = [0], widths[0]
        places.append(place)
        taken += needed
    yield table.of(places)


def _grid(rows: Iterable[Sequence[Text]]) -> RichTable:
    """Rows without lines; words longer than their column, such as paths, are wrapped."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for row in rows:
        for _ in row[len(grid.columns) :]:
            grid.add_column(overflow="fold")
        grid.add_row(*row)
    return grid


def _drawn(table: Table, arms: Mapping[str, ArmStyle]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    cells = [
        [_cell(row.cells[place], column, row, arms) for row in table.rows] for place, column in enumerate(table.columns)
    ]
    for column, below in zip(table.columns, cells, strict=True):
        title = _in_lines(column.title)
        words = [word for cell in below for word in cell.plain.split() if len(word) < _LEAST_TEXT]
        drawn.add_column(
            Text(title),
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=column.numeric,
            min_width=max(map(len, [*title.split("\n"), *words])),  # else rich cuts headers and words
        )
    for row_cells in zip(*cells, strict=True):
        drawn.add_row(*row_cells)
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


def _column_width(table: Table, place: int, arms: Mapping[str, ArmStyle]) -> int:
    column = table.columns[place]
    texts = (_cell(row.cells[place], column, row, arms).plain for row in table.rows)
    return max(cell_len(line) for text in (_in_lines(column.title), *texts) for line in text.split("\n"))
