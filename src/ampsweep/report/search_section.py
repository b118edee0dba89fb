"""A search for the largest batch that trains, as a section of a comparison."""

from operator import itemgetter
from typing import Final

from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.records.batch_search import Probe
from ampsweep.report.document import Item, Prose, Section, items_of, section_of
from ampsweep.report.tables import (
    ABSENT,
    Cell,
    Column,
    Columns,
    Table,
    count_cell,
    estimate_cell,
    table_of,
    text_column,
    value_cell,
    value_column,
)
from ampsweep.text import as_sentence, num_bytes, number, percent, ratio, with_error


def search_section(found: SearchComparison) -> Section:
    """The largest batch of every arm, the reason why it is the largest, and every batch that was tried."""
    probes = [(arm.arm, probe) for arm in found.arms for probe in arm.probes]
    table = table_of("batches_tried", _PROBE_COLUMNS, probes, itemgetter(0))
    tried = section_of("Batches tried", "", [table], folded=True)
    return Section(
        title=found.heading,
        kind="card",
        blocks=(
            Prose(found.sentence, "headline"),
            largest_batches_table(found),
            *items_of(Item(as_sentence(line)) for line in found.lines),
            *([tried] if tried else []),
        ),
    )


def largest_batches_table(found: SearchComparison) -> Table:
    return table_of("largest_batches", _COLUMNS, found.arms, lambda arm: arm.arm)


def _batch(size: float) -> str:
    return f"{size:.0f}" if size else "not even 1"


def _largest(arm: ArmSearch) -> Cell:
    more = "+" if arm.bound == "limit" else ""
    return value_cell(arm.batch_size, lambda size: _batch(size) + more)


def _predicted_peak(arm: ArmSearch) -> Cell:
    return value_cell(arm.predicted_memory_bytes, lambda value: with_error(num_bytes(value), arm.prediction_error_pct))


_COLUMNS: Final[Columns[ArmSearch]] = (
    text_column("arm", lambda arm: arm.arm),
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
    text_column("status", lambda arm: statuses_text(arm.statuses)),
)
_PROBE_COLUMNS: Final[Columns[tuple[str, Probe]]] = (
    text_column("arm", itemgetter(0)),
    (Column("batch", numeric=True), lambda tried: count_cell(tried[1].batch_size)),
    text_column("outcome", lambda tried: "out of memory" if tried[1].outcome == "oom" else tried[1].outcome),
    (Column("peak memory", "peak_bytes", numeric=True), lambda tried: value_cell(tried[1].peak_bytes, num_bytes)),
    text_column("why", lambda tried: tried[1].error or ABSENT, optional=True),
)
