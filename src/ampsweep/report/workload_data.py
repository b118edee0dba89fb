"""The data of panels: one workload's runs, pairs and curves, in the order of its arms."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.runs import Run
from ampsweep.analysis.statistics import known_median
from ampsweep.report.histories import Histories


@dataclass(frozen=True)
class WorkloadData:
    compared: WorkloadComparison
    histories: Histories
    max_pairs: int | None = None  # planned pairs of an arm

    @property
    def measured_arms(self) -> list[str]:
        """Arms with a run that may be compared."""
        return [arm for arm in self.compared.names if any(run.measured for run in self.runs_of(arm))]

    def runs_of(self, arm: str) -> Sequence[Run]:
        return self._runs_by_arm.get(arm, ())

    @cached_property
    def _runs_by_arm(self) -> Mapping[str, Sequence[Run]]:
        by_arm: dict[str, list[Run]] = defaultdict(list)
        for entry in self.compared.runs:
            by_arm[entry.arm].append(entry.run)
        return by_arm

    def values_of(self, arm: str, key: str) -> list[tuple[int, float]]:
        """The seeds and the summary's values of `key` over the arm's runs that may be compared in it, by seed."""
        found = [(run.seed, value) for run in self.runs_of(arm) if (value := run.compared_figure(key)) is not None]
        return sorted(found)

    def figure_of(self, arm: str, key: str) -> float | None:
        """The arm's figure in the comparison, or else the median over its runs."""
        figure = next((compared.figure(key) for compared in self.compared.arms if compared.arm == arm), None)
        return known_median(value for _, value in self.values_of(arm, key)) if figure is None else figure
