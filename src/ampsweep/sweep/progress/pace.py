"""The pace of a run and of a sweep, and the time left that follows from it."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass
class SweepPace:
    """The pace of a sweep: the times that runs took, as estimates for similar runs."""

    to_come: list[PlannedRun]
    _took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _of_any_kind: list[float] = field(default_factory=list)

    def ended(self, run: PlannedRun, seconds: float, *, trained: bool) -> None:
        """Note the seconds that `run` took, the pause before it included; if it did not train, for its kind only."""
        self._took[run.kind].append(seconds)
        if trained:
            self._of_any_kind.append(seconds)
        if run in self.to_come:
            self.to_come.remove(run)

    def seconds_left(self, running: PlannedRun | None, elapsed_s: float, run_left_s: float | None) -> float | None:
        """Seconds left, the `running` run included; None while there is nothing to estimate from.

        Args:
            running: the current run.
            elapsed_s: seconds since it began.
            run_left_s: seconds left of it, if known.
        """
        rest = [run for run in self.to_come if run != running]
        usual = self._usual(elapsed_s, run_left_s)
        expected = [self._expected(run, usual) for run in rest]
        if running is not None:
            whole = self._expected(running, usual)
            expected.append(run_left_s if run_left_s is not None or whole is None else max(whole - elapsed_s, 0.0))
        known = [seconds for seconds in expected if seconds is not None]
        return sum(known) if len(known) == len(expected) else None

    def _usual(self, elapsed_s: float, run_left_s: float | None) -> float | None:
        if self._of_any_kind:
            return statistics.fmean(self._of_any_kind)
        return None if run_left_s is None else elapsed_s + run_left_s

    def _expected(self, run: PlannedRun, usual: float | None) -> float | None:
        took: Sequence[float] = self._took.get(run.kind, ())
        return statistics.fmean(took) if took else usual
