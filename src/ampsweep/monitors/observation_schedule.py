"""The choice of steps that are observed, so that observation takes a fixed share of a training's time."""

from time import perf_counter
from typing import Final

SHARE: Final = 0.005
_SECOND: Final = 4  # steps from the first to the second observation: at the first there is no optimizer state yet


class ObservationSchedule:
    """Decides before each step of a process whether it is observed. With a fixed interval of `every` steps: the first
    step, each multiple of it and the last (`num_steps`). With None: the first, the fifth and the last step, and between
    these as many as take half a percent of the time, by the cost of observations so far."""

    def __init__(self, every: int | None, num_steps: int) -> None:
        self._every, self._num_steps = every, num_steps
        self._first: int | None = None
        self._num_looks, self._last_cost_s = 0, 0.0
        self._began_s = perf_counter()
        self.spent_s = 0.0
        self.aside_s = 0.0  # time since the beginning outside of steps

    def is_due(self, step: int) -> bool:
        if self._first is None:
            self._first, self._began_s = step, perf_counter()
        if self._num_looks == 0 or step == self._num_steps:
            return True
        if self._every is not None:
            return step % self._every == 0
        if self._num_looks == 1 and step >= self._first + _SECOND:
            return True
        return self._num_looks > 1 and self.spent_s + self._last_cost_s <= SHARE * self.steps_s

    def observed(self, cost_s: float) -> None:
        self._num_looks += 1
        self._last_cost_s = cost_s
        self.spent_s += cost_s

    @property
    def steps_s(self) -> float:
        """Time of the steps since the first, without observation."""
        return perf_counter() - self._began_s - self.spent_s - self.aside_s

    @property
    def cost_pct(self) -> float | None:
        """Observation time in percent of the steps' time; None before the first observation."""
        if not self._num_looks or self.steps_s <= 0:
            return None
        return 100 * self.spent_s / self.steps_s
