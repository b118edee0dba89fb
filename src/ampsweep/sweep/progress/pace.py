"""The pace of a run and of a sweep, and the time left that follows from it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from ampsweep.sweep.plan import PlannedRun


@dataclass
class RunPace:
    """The pace of one run, from the times at which its steps were reported. Times are seconds of one clock."""

    began_s: float
    max_seconds: float | None = None
    """The longest time that the run may train."""
    _first: tuple[int, float] | None = None
    _latest: tuple[int, float] | None = None
    _num_steps: int = 0

    def heard(self, step: int, num_steps: int, now_s: float) -> None:
        """Note that the run has reached `step` of `num_steps`."""
        self._latest, self._num_steps = (step, now_s), num_steps
        self._first = self._first or self._latest

    def seconds_left(self, now_s: float) -> float | None:
        """Seconds left of the training at the pace so far; None until two steps were reported."""
        if self._first is None or self._latest is None or self._latest[0] == self._first[0]:
            return None
        (first, first_s), (step, step_s) = self._first, self._latest
        left_s = (self._num_steps - step) * (step_s - first_s) / (step - first) - (now_s - step_s)
        if self.max_seconds is not None:
            left_s = min(left_s, first_s + self.max_seconds - now_s)
        return max(left_s, 0.0)


class SweepPace:
    """The pace of a sweep: the times that runs took, as estimates for similar runs.

    It is asked twice a second while runs are timed, so it counts runs by their kind.
    """

    def __init__(self, to_come: Iterable[PlannedRun]) -> None:
        self._to_come = Counter(to_come)
        self._num_of_kind = Counter(run.kind for run in self._to_come.elements())
        self._took: dict[str, list[float]] = defaultdict(list)
        self._of_any_kind: list[float] = []

    def ended(self, run: PlannedRun, seconds: float, *, trained: bool) -> None:
        """Note the seconds that `run` took, the pause before it included; if it did not train, for its kind only."""
        self._took[run.kind].append(seconds)
        if trained:
            self._of_any_kind.append(seconds)
        if self._to_come[run]:
            self._to_come[run] -= 1
            self._num_of_kind[run.kind] -= 1

    def seconds_left(self, running: PlannedRun | None, elapsed_s: float, run_left_s: float | None) -> float | None:
        """Seconds left, the `running` run included, of which `run_left_s` are left; None where nothing tells."""
        if self._of_any_kind:
            usual: float | None = fmean(self._of_any_kind)
        else:
            usual = None if run_left_s is None else elapsed_s + run_left_s
        total_s = 0.0
        for kind, num_runs in self._num_of_kind.items():
            num_left = num_runs - (self._to_come[running] if running is not None and running.kind == kind else 0)
            expected = self._expected(kind, usual)
            if num_left and expected is None:
                return None
            total_s += num_left * (expected or 0.0)
        if running is not None:
            whole = self._expected(running.kind, usual)
            left = run_left_s if run_left_s is not None or whole is None else max(whole - elapsed_s, 0.0)
            if left is None:
                return None
            total_s += left
        return total_s

    def _expected(self, kind: str, usual: float | None) -> float | None:
        return fmean(self._took[kind]) if self._took[kind] else usual
