"""The data that panels are drawn from: one workload's runs, pairs and curves, in the order of its arms."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.run_findings import RunEntry
from ampsweep.analysis.runs import OF_SPEED, Run
from ampsweep.analysis.search_comparison import SearchComparison
from ampsweep.report.histories import Curve, Histories

Anything = WorkloadComparison | SearchComparison
Compared = TypeVar("Compared", bound=Anything, covariant=True)


@dataclass(frozen=True)
class ArmRuns(Generic[Compared]):
    """Something that was compared, with the runs it was made from by arm."""

    compared: Compared
    histories: Histories

    @property
    def names(self) -> tuple[str, ...]:
        """The arms in the order of tables."""
        return self.compared.names

    @property
    def runs(self) -> list[Run]:
        """In the order of the entries of `compared`."""
        return [entry.run for entry in self.compared.runs]

    @property
    def listed(self) -> list[RunEntry]:
        """The entries of the runs, arm by arm in the order of tables, each by seed."""
        position = {arm: index for index, arm in enumerate(self.names)}
        return sorted(self.compared.runs, key=lambda entry: (position[entry.arm], entry.seed))

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
    """One workload of a comparison."""

    @property
    def arms(self) -> tuple[ArmComparison, ...]:
        return self.compared.arms

    def figure_of(self, arm: str, key: str) -> float | None:
        """The arm's figure in the comparison; of a metric without one the median over runs."""
        figure = next((one.figure(key) for one in self.arms if one.arm == arm), None)
        return self.median_of(arm, key) if figure is None else figure

    def curve_of(self, run: Run, key: str) -> Curve | None:
        return self.histories.curves.get(run.directory, {}).get(key)

    def verdict_on(self, arm: str) -> Candidate | None:
        """The verdict on an arm; None of the baseline, and where that did not run."""
        return next((one for one in self.compared.verdict.arms if one.arm == arm), None)


SearchData = ArmRuns[SearchComparison]
"""One search for the largest batches, with the trainings with its answers."""
