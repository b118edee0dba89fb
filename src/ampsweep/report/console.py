"""The comparison as tables on a terminal, or in a pipe or log file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.analysis.search_comparison import SearchComparison
from ampsweep.analysis.size_series import SizeSeries
from ampsweep.report.columns import ARM, Cell, Column, columns_for
from ampsweep.report.extent import JSON_NAME
from ampsweep.report.palette import arm_colour
from ampsweep.report.rank_tables import arms_with_ranks, dtypes_table, has_ranks, lines_of_ranks, ranks_table
from ampsweep.report.seam_tables import RESUMED_IN, SAVED_IN, matrix
from ampsweep.report.search_tables import search_table
from ampsweep.report.sentences.batch_limits import HEADING, heading, largest_batches, search_lines
from ampsweep.report.sentences.explaining import arm_note, comparison_note
from ampsweep.report.sentences.file_problems import file_problems
from ampsweep.report.sentences.ranks import DTYPES as DTYPES_HEADING
from ampsweep.report.sentences.recommending import conclusion, recommendation
from ampsweep.report.sentences.seams import HEADING as SEAMS
from ampsweep.report.sentences.seams import answer, explanation, seam_lines
from ampsweep.report.sentences.seams import heading as seam_heading
from ampsweep.report.sentences.sizes import series_heading, series_lines
from ampsweep.report.size_tables import size_table
from ampsweep.report.table import Table as TextTable
from ampsweep.report.verdict_lines import console_lines
from ampsweep.text import plural

PLAIN_WIDTH: Final = 110
"""Least width, in characters, of output that goes to no terminal."""
_UNBOUNDED: Final = 10_000
_MAX_WORKLOADS: Final = 50


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print a table, the verdict and the conclusion of each workload.

    A terminal too narrow for the table gets it turned, a column an arm. A console that is no terminal is widened
    so that no figure is folded: a log file has no edge.
    """
    if not comparison.compared:
        console.print("No runs to compare.")
    for workload in comparison.workloads[:_MAX_WORKLOADS]:
        _print_workload(workload, comparison.baseline, console)
    if has_ranks(comparison.workloads) and (dtypes := dtypes_table(comparison.workloads)) is not None:
        with at_least(console, PLAIN_WIDTH):
            console.print(Text(f"\n{DTYPES_HEADING}", style="bold"), of_texts(dtypes), sep="\n")
    if (num_more := len(comparison.workloads) - _MAX_WORKLOADS) > 0:
        console.print(Text(f"\nand {plural(num_more, 'more workload')}, which are in comparison.md and {JSON_NAME}"))
    for found in comparison.searches:
        _print_search(found, console)
    for series in comparison.series:
        _print_series(series, comparison, console)
    for seam in comparison.seams:
        _print_seam(seam, console)
    for note in comparison.notes:
        console.print(Text(f"Note: {comparison_note(note)}."), soft_wrap=not console.is_terminal)
    for sentence in file_problems(comparison.file_problems):
        console.print(Text(f"Missing: {sentence}."), soft_wrap=True)


def _print_workload(workload: WorkloadComparison, baseline: str, console: Console) -> None:
    notes = [Text(f"{arm.arm}: {arm_note(note)}") for arm in workload.arms for note in arm.notes]
    table = _arms_as_rows(workload.arms)
    width = _width(table, console)
    with at_least(console, max(PLAIN_WIDTH, width)):
        if width > console.width:
            table = min(table, _arms_as_columns(workload.arms), key=lambda one: _width(one, console))
        console.print(Text(f"\n{workload.title}: against {baseline}", style="bold"), table, *notes, sep="\n")
        console.print(_verdict(workload))
        _print_ranks(workload, console)
        if any(arm.is_baseline for arm in workload.arms):  # else the recommendation says the same
            console.print(Text(conclusion(workload)))
        console.print(Text(recommendation(workload.verdict), style="bold"))


def _print_ranks(workload: WorkloadComparison, console: Console) -> None:
    named = arms_with_ranks(workload)
    if named:
        with at_least(console, PLAIN_WIDTH):
            console.print(of_texts(ranks_table(named, categories=False)))
        for arm, line in lines_of_ranks(workload):
            console.print(Text(f"{arm}: {line}"))


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum


def _print_series(series: SizeSeries, comparison: Comparison, console: Console) -> None:
    table = of_texts(size_table(series, comparison))
    with at_least(console, max(PLAIN_WIDTH, _width(table, console))):
        console.print(Text(f"\n{series_heading(series)}", style="bold"), table, sep="\n")
        for line in series_lines(series):
            console.print(Text(f"{line}."))


def of_texts(shown: TextTable) -> Table:
    """A table of texts in the console's common style."""
    table = empty_table()
    for header, numeric in zip(shown.headers, shown.numeric, strict=True):
        table.add_column(Text(header.replace(" ", "\n")), justify="right" if numeric else "left", overflow="fold")
    for name, *cells in shown.rows:
        table.add_row(Text(name, style=arm_colour(name) or ""), *map(Text, cells))
    return table


def _print_search(found: SearchComparison, console: Console) -> None:
    table = of_texts(search_table(found))
    with at_least(console, PLAIN_WIDTH):
        console.print(Text(f"\n{HEADING}: {heading(found)}", style="bold"), table, sep="\n")
        console.print(*map(Text, search_lines(found)), sep="\n")
        console.print(Text(largest_batches(found), style="bold"))


def _print_seam(found: SeamComparison, console: Console) -> None:
    columns, rows = matrix(found)
    table = empty_table()
    table.add_column(Text(f"{SAVED_IN} \\\n{RESUMED_IN}"))
    for arm in columns:
        table.add_column(Text(arm, style=arm_colour(arm) or ""), justify="right", overflow="fold")
    for arm, cells in rows:
        table.add_row(Text(arm, style=arm_colour(arm) or ""), *map(_with_detail, cells))
    with at_least(console, PLAIN_WIDTH):
        console.print(Text(f"\n{SEAMS}: {seam_heading(found)}", style="bold"), table, sep="\n")
        console.print(*map(Text, [f"{explanation(found)}.", *(f"{line}." for line in seam_lines(found))]), sep="\n")
        console.print(Text(answer(found), style="bold"))


@contextmanager
def at_least(console: Console, width: int) -> Iterator[None]:
    """Give a console that is no terminal at least this width for a while."""
    if console.is_terminal:
        yield
        return
    before = console.width
    console.width = max(before, width)
    try:
        yield
    finally:
        console.width = before


def _arms_as_rows(arms: Sequence[ArmComparison]) -> Table:
    table = empty_table()
    columns = columns_for(arms)
    for column in columns:
        header = Text(column.header.replace(" ", "\n"))
        table.add_column(header, justify="right" if column.numeric else "left", overflow="fold")
    for arm in arms:
        table.add_row(*(_text(column, column.render(arm), arm) for column in columns))
    return table


def _arms_as_columns(arms: Sequence[ArmComparison]) -> Table:
    """The same table transposed, for a narrow terminal: one row per figure, one column per arm."""
    table = empty_table()
    name, *figures = columns_for(arms)
    assert name is ARM
    table.add_column("")
    for arm in arms:
        table.add_column(_text(name, name.render(arm), arm), justify="right", overflow="fold")
    for column in figures:
        table.add_row(Text(column.header), *(_text(column, column.render(arm), arm) for arm in arms))
    return table


def _verdict(workload: WorkloadComparison) -> Table:
    """A line an arm for each topic; a topic is named once."""
    table = Table.grid(padding=(0, 2, 0, 0))
    topic = None
    for line in console_lines(workload):
        shown = "" if line.topic == topic else line.topic
        arm = Text(line.arm or "", style=(arm_colour(line.arm or "") or ""))
        table.add_row(Text(shown, style="dim"), arm, Text(line.text))
        topic = line.topic
    return table


def empty_table() -> Table:
    """A table in the console's common style."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def _text(column: Column, cell: Cell, arm: ArmComparison) -> Text:
    """A cell over as many lines as keep its column narrow."""
    style = (arm_colour(arm.arm) or "") if column is ARM else ""
    value = cell.value if column.numeric else cell.value.replace(", ", "\n").replace("+", "\n+")
    return _with_detail(Cell(value, cell.detail), style)


def _with_detail(cell: Cell, style: str = "") -> Text:
    text = Text(cell.value, style=style)
    if cell.detail:
        text.append("\n" + cell.detail.replace("; ", "\n"), style="dim")
    return text
