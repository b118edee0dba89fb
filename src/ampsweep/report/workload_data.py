"""The data that panels are drawn from: one workload's runs, pairs and curves, in the order of its arms."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.pairing import Pair, pair_runs
from ampsweep.analysis.run_findings import RunEntry
from ampsweep.analysis.runs import OF_SPEED, Run
from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.analysis.search_comparison import SearchComparison
from ampsweep.record import RunRecord
from ampsweep.report.curves import Curve
from ampsweep.report.histories import Histories

Anything = WorkloadComparison | SearchComparison | SeamComparison
Compared = TypeVar("Compared", bound=Anything, covariant=True)


@dataclass(frozen=True)
class ArmRuns(Generic[Compared]):
    """Something that was compared, with the runs it was made from by arm."""

    compared: Compared
    names: tuple[str, ...]
    """The arms in the order of tables."""
    runs: tuple[Run, ...]
    """In the order of the entries of `compared`."""
    histories: Histories

    @property
    def listed(self) -> list[tuple[Run, RunEntry]]:
        """The runs with their entries, arm by arm in the order of tables, each by seed."""
        position = {arm: index for index, arm in enumerate(self.names)}
        both = zip(self.runs, self.compared.runs, strict=True)
        return sorted(both, key=lambda item: (position[item[0].arm], item[0].seed))

    @property
    def measured_arms(self) -> list[str]:
        """Arms with a run that may be compared; the others have nothing to show, and their runs say why."""
        return [arm for arm in self.names if any(run.measured for run in self.runs_of(arm))]

    def runs_of(self, arm: str) -> Sequence[Run]:
        return self._runs_by_arm.get(arm, ())

    @cached_property
    def _runs_by_arm(self) -> Mapping[str, Sequence[Run]]:
        by_arm: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            by_arm[run.arm].append(run)
        return by_arm

    def values_of(self, arm: str, key: str) -> list[tuple[Run, float]]:
        """The summary's values of `key` over the arm's runs that may be compared in it, by seed."""
        is_speed = key.startswith(OF_SPEED)
        found = [
            (run, value)
            for run in self.runs_of(arm)
            if run.measured and not (is_speed and run.contamination) and (value := run.figure(key)) is not None
        ]
        return sorted(found, key=lambda item: item[0].seed)

    def contaminated(self, arm: str, key: str) -> list[Run]:
        """The arm's runs whose value of `key`, which is one of speed, does not count."""
        if not key.startswith(OF_SPEED):
            return []
        return [run for run in self.runs_of(arm) if run.measured and run.contamination and run.figure(key) is not None]

    def median_of(self, arm: str, key: str) -> float | None:
        values = [value for _, value in self.values_of(arm, key)]
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class WorkloadData(ArmRuns[WorkloadComparison]):
    """One workload of a comparison, also with its pairs."""

    pairs: tuple[Pair, ...]

    @property
    def arms(self) -> tuple[ArmComparison, ...]:
        return self.compared.arms

    def figure_of(self, arm: str, key: str) -> float | None:
        """The arm's figure in the comparison; of a metric without one the median over runs."""
        figure = next((one.figure(key) for one in self.arms if one.arm == arm), None)
        return self.median_of(arm, key) if figure is None else figure

    def curve_of(self, run: Run, key: str) -> Curve | None:
        return self.histories.curves.get(run.directory, {}).get(key)

    def pairs_of(self, arm: str) -> list[Pair]:
        return sorted((pair for pair in self.pairs if pair.arm == arm), key=lambda pair: pair.arm_runs[0].seed)


SearchData = ArmRuns[SearchComparison]
"""One search for the largest batches, with the trainings with its answers."""
SeamData = ArmRuns[SeamComparison]
"""The runs that went on from others' checkpoints at one seam."""


def compared_data(
    comparison: Comparison, records: Sequence[tuple[Path, RunRecord]], histories: Histories, directory: Path | None
) -> tuple[list[WorkloadData], list[SearchData], list[SeamData]]:
    """The workloads, searches and seams of `comparison` with the `records` it was made from and their `histories`.

    Their run directories are named as seen from `directory`.
    """
    by_directory = {place.as_posix(): Run(place, record) for place, record in reversed(records)}
    named = comparison if directory is None else comparison.relative_to(directory)

    def runs_of(one: Anything) -> tuple[Run, ...]:
        return tuple(by_directory[entry.directory] for entry in one.runs)

    workloads = []
    for one, as_named in zip(comparison.workloads, named.workloads, strict=True):
        runs, names = runs_of(one), tuple(arm.arm for arm in one.arms)
        workloads.append(WorkloadData(as_named, names, runs, histories, pair_runs(runs, comparison.baseline).pairs))
    searches = [
        SearchData(as_named, tuple(arm.arm for arm in one.arms), runs_of(one), histories)
        for one, as_named in zip(comparison.searches, named.searches, strict=True)
    ]
    seams = [
        SeamData(as_named, tuple(one.resumed_in), runs_of(one), histories)
        for one, as_named in zip(comparison.seams, named.seams, strict=True)
    ]
    return workloads, searches, seams
