"""The ranks of a run or an arm side by side: the fullest, the slowest, and the spread between ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ampsweep.analysis.runs import LARGEST_FIGURE, Run
from ampsweep.analysis.statistics import known_median
from ampsweep.finding import Finding
from ampsweep.records.sections import RankFigures
from ampsweep.text import GIB, MIB, milliseconds, num_bytes, plural


@dataclass(frozen=True, kw_only=True)
class RankRow:
    rank: int
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    device_names: tuple[str, ...]
    peak_bytes: float | None
    peak_by_category: dict[str, float]  # bytes at the traced step's peak
    step_ms: float | None
    data_wait_ms: float | None
    communication_ms: float | None  # time of a step that its device waits for other ranks


class RankTable(Finding):
    num_runs: int
    rows: tuple[RankRow, ...]
    fullest: int | None  # first rank with the highest peak
    memory_spread_bytes: float | None
    slowest: int | None
    time_spread_ms: float | None
    waited_for: int | None  # the rank that waits least for the others, if the waits differ
    reduced_mib: float | None  # gradients that a rank hands to the reduction in a step
    communication_ms: float | None  # that of the rank that waits least

    @property
    def sentence(self) -> str:
        return "; ".join(self._clauses()) or plural(len(self.rows), "rank")

    def _clauses(self) -> Iterator[str]:
        by_rank: dict[int | None, RankRow] = {row.rank: row for row in self.rows}
        fullest, slowest, waited_for = map(by_rank.get, (self.fullest, self.slowest, self.waited_for))
        is_alone, spread = len(self.rows) == 1, self.memory_spread_bytes
        if fullest is not None and fullest.peak_bytes is not None and spread is not None and not is_alone:
            peak, count = num_bytes(fullest.peak_bytes), plural(len(self.rows), "rank")
            beyond = (
                f"rank {fullest.rank} is the fullest, with a peak of {peak}, {num_bytes(spread)} more than the emptiest"
            )
            yield beyond if spread else f"the {count} have the same peak of {peak}"
        if slowest is not None and slowest.step_ms is not None and not is_alone:
            more = "" if self.time_spread_ms is None else f", {milliseconds(self.time_spread_ms)} more than the fastest"
            yield f"rank {slowest.rank} is the slowest, with {milliseconds(slowest.step_ms)} a step{more}"
        if waited_for is not None and waited_for.communication_ms is not None:
            longest = max(row.communication_ms or 0.0 for row in self.rows)
            waits = f"in a step it waits {milliseconds(waited_for.communication_ms)} for them"
            yield f"the others wait for rank {waited_for.rank}: {waits}, and they up to {milliseconds(longest)}"
        if self.reduced_mib is not None:
            yield f"each rank hands {num_bytes(self.reduced_mib * MIB)} of gradients to the reduction in a step"


def ranks_of_arm(runs: Sequence[Run]) -> RankTable | None:
    """The ranks of an arm's measured `runs`; times are those of uncontaminated runs."""
    measured = [run for run in runs if run.record.ranks and run.measured]
    return _table(measured, [run for run in measured if run.contamination is None]) if measured else None


def ranks_of_run(run: Run) -> RankTable | None:
    return _table([run], [run]) if run.record.ranks else None


def _table(measured: Sequence[Run], timed: Sequence[Run]) -> RankTable:
    by_rank, timed_by_rank = _by_rank(measured), _by_rank(timed)
    rows = tuple(_row(rank, by_rank[rank], timed_by_rank.get(rank, [])) for rank in sorted(by_rank))
    peaks = [(row.peak_bytes, -row.rank) for row in rows if row.peak_bytes is not None]
    times = [(row.step_ms, -row.rank) for row in rows if row.step_ms is not None]
    waits = [(row.communication_ms, row.rank) for row in rows if row.communication_ms is not None]
    return RankTable(
        num_runs=len(measured),
        rows=rows,
        fullest=-max(peaks)[1] if peaks else None,
        memory_spread_bytes=_spread(peaks) if len(peaks) == len(rows) else None,
        slowest=-max(times)[1] if times else None,
        time_spread_ms=_spread(times) if len(times) == len(rows) else None,
        waited_for=min(waits)[1] if waits and len(waits) == len(rows) and _spread(waits) else None,
        reduced_mib=known_median(run.figure("perf/reduced_mib") for run in measured),
        communication_ms=known_median(run.figure("perf/communication_ms") for run in timed),
    )


def _by_rank(runs: Iterable[Run]) -> dict[int, list[RankFigures]]:
    found: dict[int, list[RankFigures]] = {}
    for run in runs:
        for place, figures in enumerate(run.record.ranks):
            found.setdefault(place if figures.rank is None else figures.rank, []).append(figures)
    return found


def _row(rank: int, there: Sequence[RankFigures], in_time: Sequence[RankFigures]) -> RankRow:
    categories = dict.fromkeys(category for figures in there for category in figures.peak or {})
    peaks = {key: known_median((figures.peak or {}).get(key) for figures in there) for key in categories}
    return RankRow(
        rank=rank,
        hosts=tuple(dict.fromkeys(figures.host for figures in there if figures.host is not None)),
        devices=tuple(dict.fromkeys(figures.device for figures in there if figures.device is not None)),
        device_names=tuple(dict.fromkeys(figures.device_name for figures in there if figures.device_name is not None)),
        peak_bytes=None if (peak := _median(figures.peak_allocated_gib for figures in there)) is None else peak * GIB,
        peak_by_category={str(key): value for key, value in peaks.items() if value is not None},
        step_ms=_median(figures.step_ms for figures in in_time),
        data_wait_ms=_median(figures.data_wait_ms for figures in in_time),
        communication_ms=_median(figures.communication_ms for figures in in_time),
    )


def _median(values: Iterable[float | None]) -> float | None:
    return known_median(value for value in values if value is not None and 0 <= value <= LARGEST_FIGURE)


def _spread(values: Sequence[tuple[float, int]]) -> float:
    return max(values)[0] - min(values)[0]
