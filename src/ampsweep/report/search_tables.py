"""The largest batches that train, as tables of texts for every renderer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.record.batch_search import Probe
from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import ratio_figure
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.table import Table
from ampsweep.text import num_bytes, number, predicted_bytes, ratio

T = TypeVar("T")


def search_table(found: SearchComparison) -> Table:
    """An arm a row."""
    shown = [one for one in _COLUMNS if not one.optional or any(one.render(arm) != ABSENT for arm in found.arms)]
    rows = tuple(tuple(column.render(arm) for column in shown) for arm in found.arms)
    return Table(tuple(column.header for column in shown), tuple(column.numeric for column in shown), rows)


def probes_table(found: SearchComparison) -> Table:
    """Every batch that was tried, as far as the first search of each arm went."""
    headers = ("arm", "batch", "outcome", "peak memory", "why")
    rows = tuple(_probe(arm.arm, probe) for arm in found.arms for probe in arm.probes)
    return Table(headers, (False, True, False, True, False), rows)


@dataclass(frozen=True)
class _Column:
    header: str
    render: Callable[[ArmSearch], str]
    numeric: bool = True
    optional: bool = False
    """Left out of a table in which no arm has it."""


def _text(value: T | None, render: Callable[[T], str]) -> str:
    return ABSENT if value is None else render(value)


def _batch(size: int) -> str:
    return str(size) if size else "not even 1"


def _largest(arm: ArmSearch) -> str:
    return _text(arm.batch_size, _batch) + ("+" if arm.bound == "limit" else "")


def _predicted_peak(arm: ArmSearch) -> str:
    return _text(arm.predicted_memory_bytes, lambda value: predicted_bytes(value, arm.prediction_error_pct))


_COLUMNS: Final = (
    _Column("arm", lambda arm: arm.arm, numeric=False),
    _Column("largest batch", _largest),
    _Column("predicted batch", lambda arm: _text(arm.predicted_batch_size, _batch), optional=True),
    _Column("batch over baseline", lambda arm: _text(arm.times_baseline, ratio)),
    _Column("samples/s there", lambda arm: _text(arm.samples_per_sec, number)),
    _Column("samples/s over baseline", lambda arm: _text(arm.throughput_ratio, ratio_figure)),
    _Column("peak memory", lambda arm: _text(arm.peak_memory_bytes, num_bytes)),
    _Column("predicted peak", _predicted_peak, optional=True),
    _Column("n", lambda arm: str(arm.num_runs)),
    _Column("status", lambda arm: statuses(arm.statuses), numeric=False),
)


def _probe(arm: str, probe: Probe) -> tuple[str, ...]:
    peak = ABSENT if probe.peak_bytes is None else num_bytes(probe.peak_bytes)
    outcome = "out of memory" if probe.outcome == "oom" else probe.outcome
    return arm, str(probe.batch_size), outcome, peak, probe.error or ABSENT
