"""The ranks of arms as a table, and the arms of each strategy beside each other."""

from collections.abc import Iterator, Sequence
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.rank_table import RankRow, RankTable
from ampsweep.analysis.swept_series import Series, value_text
from ampsweep.report.tables import Cell, Column, Row, Table, count_cell, value_cell
from ampsweep.text import loss, milliseconds, num_bytes

_MAX_RANKS: Final = 16  # ranks of an arm in a table


def ranks_table(named: Sequence[tuple[str, RankTable]]) -> Table:
    """A row for each rank of each arm (or run)."""
    rows = [Row(tuple(_rank_cells(arm, row, of)), arm=arm) for arm, of in named for row in of.rows[:_MAX_RANKS]]
    left_out = sum(max(len(of.rows) - _MAX_RANKS, 0) for _, of in named)
    columns = (
        *(Column("arm"), Column("rank", numeric=True), Column("host", optional=True), Column("device", optional=True)),
        Column("peak memory", "peak_bytes", numeric=True, optional=True),
        Column("step time", "step_ms", numeric=True, optional=True),
        Column("waiting for ranks", "communication_ms", numeric=True, optional=True),
        Column("waiting for data", "data_wait_ms", numeric=True, optional=True),
        Column("", "marks", optional=True),
    )
    more = f"{left_out} more in the records." if left_out else ""
    return Table(key="ranks", columns=columns, rows=tuple(rows), more=more)


def _rank_cells(arm: str, row: RankRow, of: RankTable) -> Iterator[Cell]:
    yield from (Cell(arm), count_cell(row.rank))
    yield from (Cell(", ".join(names) or "-") for names in (row.hosts, row.devices))
    yield value_cell(row.peak_bytes, num_bytes)
    yield from (value_cell(time, milliseconds) for time in (row.step_ms, row.communication_ms, row.data_wait_ms))
    marks = {
        "fullest": row.rank == of.fullest and bool(of.memory_spread_bytes),
        "slowest": row.rank == of.slowest and len(of.rows) > 1,
        "waited for": row.rank == of.waited_for,
    }
    yield Cell(", ".join(mark for mark, is_so in marks.items() if is_so))


def strategies_table(series: Series, comparison: Comparison) -> Table:
    """Each arm at each value of a series of words, such as strategies."""
    places = zip(series.values, series.workloads, strict=True)
    there = [(value_text(value), found) for value, place in places for found in comparison.workloads[place].arms]
    arms = list(dict.fromkeys(found.arm for _, found in there))
    there.sort(key=lambda entry: arms.index(entry[1].arm))
    known_ranks = all(workload.facts.get("source") != "wandb" for workload in comparison.workloads)
    rows = [Row((Cell(found.arm), Cell(value), *_figures(found, known_ranks)), arm=found.arm) for value, found in there]
    named = comparison.keys.named
    columns = (
        *(Column("arm"), Column(series.name), Column("ranks", numeric=True, optional=True)),
        Column(named("peak memory"), "peak_memory_bytes", numeric=True),
        Column("spread", "memory_spread_bytes", numeric=True, optional=True),
        Column("step time", "step_ms", numeric=True),
        Column("waiting", "communication_ms", numeric=True, optional=True),
        Column("reduced a step", "reduced_bytes", numeric=True, optional=True),
        Column(named("val loss"), "val_loss", numeric=True),
    )
    return Table(key="strategies", title=series.heading, columns=columns, rows=tuple(rows))


def _figures(arm: ArmComparison, known_ranks: bool) -> Iterator[Cell]:
    ranks = arm.ranks
    yield (Cell("1", 1) if known_ranks else Cell()) if ranks is None else count_cell(len(ranks.rows))
    yield value_cell(arm.peak_memory_bytes, num_bytes)
    yield value_cell(None if ranks is None else ranks.memory_spread_bytes or None, num_bytes)
    yield value_cell(arm.step_ms, milliseconds)
    yield value_cell(None if ranks is None else ranks.communication_ms, milliseconds)
    yield value_cell(None if ranks is None or ranks.reduced_mib is None else ranks.reduced_mib * 2**20, num_bytes)
    yield value_cell(None if arm.val_loss is None else arm.val_loss.mean, loss)
