"""A search for the largest batch that trains, as a section of a comparison."""

from typing import Final

from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.report.document import Item, Prose, Section, items_of
from ampsweep.report.tables import (
    Cell,
    Column,
    Columns,
    Row,
    Table,
    count_cell,
    estimate_cell,
    table_of,
    value_cell,
    value_column,
)
from ampsweep.text import as_sentence, num_bytes, number, percent, predicted_bytes, ratio


def search_section(found: SearchComparison) -> Section:
    """The largest batch of every arm, the reason why it is the largest, and every batch that was tried."""
    return Section(
        title=found.heading,
        kind="card",
        blocks=(
            Prose(found.sentence, "headline"),
            largest_batches_table(found),
            *items_of(Item(as_sentence(line)) for line in found.lines),
            Section(title="Batches tried", blocks=(_probes(found.arms),), folded=True),
        ),
    )


def largest_batches_table(found: SearchComparison) -> Table:
    return table_of("largest_batches", _COLUMNS, found.arms, lambda arm: arm.arm)


def _probes(arms: tuple[ArmSearch, ...]) -> Table:
    rows = [
        Row(
            (
                *(Cell(arm.arm), count_cell(probe.batch_size)),
                Cell("out of memory" if probe.outcome == "oom" else probe.outcome),
                value_cell(probe.peak_bytes, num_bytes),
                Cell(probe.error or "-"),
            ),
            arm=arm.arm,
        )
        for arm in arms
        for probe in arm.probes
    ]
    columns = (
        *(Column("arm"), Column("batch", numeric=True), Column("outcome")),
        *(Column("peak memory", "peak_bytes", numeric=True), Column("why", optional=True)),
    )
    return Table(key="batches_tried", columns=columns, rows=tuple(rows))


def _batch(size: float) -> str:
    return f"{size:.0f}" if size else "not even 1"


def _largest(arm: ArmSearch) -> Cell:
    more = "+" if arm.bound == "limit" else ""
    return value_cell(arm.batch_size, lambda size: _batch(size) + more)


def _predicted_peak(arm: ArmSearch) -> Cell:
    return value_cell(arm.predicted_memory_bytes, lambda value: predicted_bytes(value, arm.prediction_error_pct))


_COLUMNS: Final[Columns[ArmSearch]] = (
    (Column("arm"), lambda arm: Cell(arm.arm)),
    (Column("largest batch", "batch_size", numeric=True), _largest),
    value_column("predicted batch", "predicted_batch_size", _batch, optional=True),
    value_column("batch over baseline", "times_baseline", ratio),
    value_column("samples/s there", "samples_per_sec", number),
    (
        Column("samples/s over baseline", "throughput_ratio", numeric=True),
        lambda arm: estimate_cell(arm.throughput_ratio, "ratio"),
    ),
    value_column("peak memory", "peak_memory_bytes", num_bytes),
    (Column("predicted peak", "predicted_memory_bytes", numeric=True, optional=True), _predicted_peak),
    value_column("prediction error (%)", "prediction_error_pct", percent, data_only=True),
    (Column("n", "runs", numeric=True), lambda arm: count_cell(arm.num_runs)),
    (Column("status"), lambda arm: Cell(statuses_text(arm.statuses))),
)
