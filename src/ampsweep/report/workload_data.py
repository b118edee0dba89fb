"""The data of panels: one workload's runs, pairs and curves, in the order of its arms."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.runs import OF_SPEED, Run
from ampsweep.report.histories import Curve, Histories


@dataclass(frozen=True)
class WorkloadData:
    compared: WorkloadComparison
    histories: Histories

    @property
    def names(self) -> tuple[str, ...]:
        """The arms in the order of tables."""
        return self.compared.names

    @property
    def arms(self) -> tuple[ArmComparison, ...]:
        return self.compared.arms

    @property
    def measured_arms(self) -> list[str]:
        """Arms with a run that may be compared."""
        return [arm for arm in self.names if any(run.measured for run in self.runs_of(arm))]

    def runs_of(self, arm: str) -> Sequence[Run]:
        return self._runs_by_arm.get(arm, ())

    @cached_property
    def _runs_by_arm(self) -> Mapping[str, Sequence[Run]]:
        by_arm: dict[str, list[Run]] = defaultdict(list)
        for entry in self.compared.runs:
            by_arm[entry.arm].append(entry.run)
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

    def median_of(self, arm: str, key: str) -> float | None:
        values = [value for _, value in self.values_of(arm, key)]
        return statistics.median(values) if values else None

    def figure_of(self, arm: str, key: str) -> float | None:
        """The arm's figure in the comparison, or else the median over its runs."""
        figure = next((compared.figure(key) for compared in self.arms if compared.arm == arm), None)
        return self.median_of(arm, key) if figure is None else figure

    def curve_of(self, run: Run, key: str) -> Curve | None:
        return self.histories.curves.get(run.directory, {}).get(key)

    def verdict_on(self, arm: str) -> Candidate | None:
        """The verdict on an arm; None for the baseline and arms that did not run."""
        return next((candidate for candidate in self.compared.verdict.arms if candidate.arm == arm), None)
