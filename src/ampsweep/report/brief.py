"""The comparison in a few lines, for the live display of a sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.report.columns import ARM, Column, columns_for
from ampsweep.report.console import empty_table
from ampsweep.report.palette import arm_colour
from ampsweep.report.sentences import seams
from ampsweep.report.sentences.batch_limits import heading, largest_batches
from ampsweep.report.sentences.recommending import recommendation
from ampsweep.text import plural

_NUM_OTHER_LINES: Final = 4
"""Title, headers, rule, and the recommendation."""
_NUM_SEARCH_LINES: Final = 2
_UNBOUNDED: Final = 10_000


@dataclass(frozen=True)
class BriefComparison:
    """The arms of each workload, in the available width and height.

    If there is no room, columns are left out by rank, then uncertainties, then workloads and arms, which are counted.
    """

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables that fit (rich's protocol)."""
        workloads, room = self.comparison.workloads, options.max_height - 1  # a line for what is left out
        left_out: list[str] = []
        for index, workload in enumerate(workloads):
            num_arms = len(workload.arms) if index else min(len(workload.arms), max(room - _NUM_OTHER_LINES, 1))
            height, shown = self._workload(workload, workload.arms[:num_arms], room, console, options)
            if height > room:
                left_out.append(plural(len(workloads) - index, "more workload"))
                break
            yield shown
            room -= height
            if num_arms < len(workload.arms):
                left_out.append(plural(len(workload.arms) - num_arms, "more arm"))
        for found in self.comparison.searches:
            if room >= _NUM_SEARCH_LINES:
                yield _bold(f"{plural(len(found.runs), 'run')} so far: {heading(found)}")
                yield _faint(largest_batches(found))
                room -= _NUM_SEARCH_LINES
        for seam in self.comparison.seams:
            if room >= _NUM_SEARCH_LINES:
                yield _bold(f"{plural(len(seam.runs), 'run')} so far: {seams.heading(seam)}")
                yield _faint(seams.answer(seam))
                room -= _NUM_SEARCH_LINES
        if left_out:
            yield _faint(f"and {', '.join(left_out)}")

    def _workload(
        self,
        workload: WorkloadComparison,
        arms: Sequence[ArmComparison],
        room: int,
        console: Console,
        options: ConsoleOptions,
    ) -> tuple[int, RenderableType]:
        """The best of a workload's tables that fits, between title and recommendation, with its number of lines."""
        unbounded = options.update(width=_UNBOUNDED)
        height, table = 0, empty_table()
        for height, table in _tables(arms, columns_for(workload.arms)):
            is_narrow = console.measure(table, options=unbounded).maximum <= options.max_width
            if is_narrow and height + _NUM_OTHER_LINES <= room:
                break
        title = f"{plural(len(workload.runs), 'run')} so far, against {self.comparison.baseline}: {workload.title}"
        return height + _NUM_OTHER_LINES, Group(
            _bold(title),
            table,
            _faint(recommendation(workload.verdict)),
        )


def _tables(arms: Sequence[ArmComparison], columns: Sequence[Column]) -> Iterator[tuple[int, Table]]:
    """Height and table, from everything to the least: uncertainties beside the figures, below them, or none."""
    ranks = sorted({column.rank for column in columns}, reverse=True)
    for separator, height in ((" ", len(arms)), ("\n", 2 * len(arms))):
        for rank in ranks:
            yield height, _table(arms, [column for column in columns if column.rank <= rank], separator)
    yield len(arms), _table(arms, [column for column in columns if not column.rank], None)


def _table(arms: Sequence[ArmComparison], columns: Sequence[Column], separator: str | None) -> Table:
    table = empty_table()
    for column in columns:
        table.add_column(Text(column.header), justify="right" if column.numeric else "left", no_wrap=True)
    for arm in arms:
        table.add_row(*(_text(column, arm, separator) for column in columns))
    return table


def _text(column: Column, arm: ArmComparison, separator: str | None) -> Text:
    cell = column.render(arm)
    text = Text(cell.value, style=(arm_colour(arm.arm) or "") if column is ARM else "")
    if cell.detail and separator is not None:
        text.append(f"{separator}{cell.detail}", style="dim")
    return text


def _bold(text: str) -> Text:
    return Text(text, style="bold", no_wrap=True, overflow="ellipsis")


def _faint(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
