"""The steps in which a training is looked at, chosen so that looking takes a fixed share of its time."""

from time import perf_counter
from typing import Final

SHARE: Final = 0.005
"""Share of the time of a training's steps that looking may take."""
_SECOND: Final = 4
"""The second look comes so many steps after the first, which has shown a training without its optimizer's state."""


class Looks:
    """Decides before each step of a process whether it is looked at.

    With a fixed interval: the first step, each multiple of it and the last. Without one: the first, the fifth and the
    last step, and between these as many as take half a percent of the time, by what looks have cost so far.

    Args:
        every: the interval in steps; None: by the cost.
        num_steps: the last step of the training.
    """

    def __init__(self, every: int | None, num_steps: int) -> None:
        self._every, self._num_steps = every, num_steps
        self._first: int | None = None
        self._num_looks, self._last_cost_s = 0, 0.0
        self._began_s = perf_counter()
        self.spent_s = 0.0
        """Time that looking took so far."""
        self.aside_s = 0.0
        """Time since the beginning that was no step's."""

    def is_due(self, step: int) -> bool:
        """Tell whether a step, which is about to be taken, is to be looked at."""
        if self._first is None:
            self._first, self._began_s = step, perf_counter()
        if self._num_looks == 0 or step == self._num_steps:
            return True
        if self._every is not None:
            return step % self._every == 0
        if self._num_looks == 1 and step >= self._first + _SECOND:
            return True
        return self._num_looks > 1 and self.spent_s + self._last_cost_s <= SHARE * self.steps_s

    def looked(self, cost_s: float) -> None:
        self._num_looks += 1
        self._last_cost_s = cost_s
        self.spent_s += cost_s

    @property
    def steps_s(self) -> float:
        """Time of the steps since the first one, without looking and without what was done aside."""
        return perf_counter() - self._began_s - self.spent_s - self.aside_s

    @property
    def cost_pct(self) -> float | None:
        """Time that looking took over that of the steps; None before the first look."""
        if not self._num_looks or self.steps_s <= 0:
            return None
        return 100 * self.spent_s / self.steps_s
