"""What panels are drawn from: one workload's runs, pairs and curves, in the order of its arms."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, RunEntry, WorkloadComparison
from ampsweep.analysis.pairs import Pair, pair_runs
from ampsweep.analysis.runs import Run, Scalar
from ampsweep.record import RunRecord
from ampsweep.report.curves import Curve, Histories


@dataclass(frozen=True)
class Subject:
    """One workload of a comparison with the runs it was made from."""

    workload: WorkloadComparison
    runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    histories: Histories

    @property
    def arms(self) -> tuple[ArmComparison, ...]:
        return self.workload.arms

    @property
    def listed(self) -> list[tuple[Run, RunEntry]]:
        """The runs with their entries, arm by arm in the order of tables, each by seed."""
        position = {one.arm: index for index, one in enumerate(self.arms)}
        both = zip(self.runs, self.workload.runs, strict=True)
        return sorted(both, key=lambda item: (position[item[0].arm], item[0].seed))

    @property
    def measured_arms(self) -> list[str]:
        """Arms with a run that may be compared; the others have nothing to show, and their runs say why."""
        return [one.arm for one in self.arms if any(run.measured for run in self.runs_of(one.arm))]

    def runs_of(self, arm: str) -> list[Run]:
        return [run for run in self.runs if run.arm == arm]

    def curve_of(self, run: Run, key: str) -> Curve | None:
        return self.histories.curves.get(run.directory, {}).get(key)

    def values_of(self, arm: str, key: str) -> list[tuple[Run, float]]:
        """The summary's values of `key` over the arm's runs that may be compared, by seed."""
        found = [(run, value) for run in self.runs_of(arm) if run.measured and (value := run.figure(key)) is not None]
        return sorted(found, key=lambda item: item[0].seed)

    def median_of(self, arm: str, key: str) -> float | None:
        values = [value for _, value in self.values_of(arm, key)]
        return statistics.median(values) if values else None

    def pairs_of(self, arm: str) -> list[Pair]:
        return sorted((pair for pair in self.pairs if pair.arm == arm), key=lambda pair: pair.arm_runs[0].seed)


def subjects(
    comparison: Comparison, records: Sequence[tuple[Path, RunRecord]], histories: Histories, directory: Path
) -> list[Subject]:
    """The workloads of `comparison` with the `records` it was made from and their `histories`.

    Their run directories are named as seen from `directory`.
    """
    by_directory = {place.as_posix(): Run(place, record) for place, record in reversed(records)}
    found = []
    named = comparison.relative_to(directory).workloads
    for workload, as_named in zip(comparison.workloads, named, strict=True):
        runs = tuple(by_directory[entry.directory] for entry in workload.runs)
        found.append(Subject(as_named, runs, pair_runs(runs, comparison.baseline).pairs, histories))
    return found


def in_order(found: Sequence[Subject]) -> list[Subject]:
    """Workloads by their facts, numbers by size: batch 16 before batch 256, whichever ran first."""
    return sorted(found, key=lambda subject: [_sort_key(value) for value in subject.workload.facts.values()])


def _sort_key(value: Scalar) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))
