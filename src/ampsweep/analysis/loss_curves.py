"""Curves of a run's losses over its training time and energy, from the rows of its history."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.runs import LARGEST_FIGURE, SMALLEST_FIGURE, STEP_MS, VAL_LOSS, figure
from ampsweep.record import RunRecord

TRAIN_LOSS: Final = "train/loss"
ENERGY_J: Final = "device/energy_j"
SERIES_KEYS: Final = (STEP_MS, VAL_LOSS, TRAIN_LOSS, ENERGY_J)
"""Metrics of the history from which the curves are made."""

MIN_EVALUATIONS: Final = 5
"""Fewest validation losses that make a curve."""
SMOOTHED_SHARE: Final = 0.1
MIN_SMOOTHED: Final = 10
"""Share of a run's training losses, and their least number, that one is averaged over, looking back."""

Floats = NDArray[np.float64]


class Series(Protocol):
    """Values of one metric by step, in the order they were logged: float64, of one length."""

    @property
    def steps(self) -> Floats: ...

    @property
    def values(self) -> Floats: ...


@dataclass(frozen=True)
class LossCurve:
    """A loss at moments of a training, first to last; at least one, all arrays of that length."""

    losses: Floats
    seconds: Floats
    """Time in steps so far; evaluation and checkpoints are outside, and steps of the warm-up count as later ones do."""
    joules: Floats | None
    """Energy of the device since the run began, whatever it did; None where it was not measured."""

    @property
    def final(self) -> float:
        """The last loss of the curve."""
        return float(self.losses[-1])

    @property
    def end(self) -> tuple[float, float | None]:
        """Seconds and joules of the whole curve."""
        return float(self.seconds[-1]), None if self.joules is None else float(self.joules[-1])

    def reach(self, target: float) -> tuple[float, float | None] | None:
        """Seconds and joules until the loss is first at `target` or below, on a straight line between two moments."""
        below = np.flatnonzero(self.losses <= target)
        if below.size == 0:
            return None
        last = int(below[0])
        first = max(last - 1, 0)
        drop = float(self.losses[first] - self.losses[last])
        share = (float(self.losses[first]) - target) / drop if drop > 0 else 1.0

        def between(values: Floats) -> float:
            return float(values[first] + share * (values[last] - values[first]))

        return between(self.seconds), None if self.joules is None else between(self.joules)


def loss_curves(record: RunRecord, series: Mapping[str, Series]) -> dict[str, LossCurve]:
    """The curves of `val/loss` (of at least five evaluations) and of `train/loss`; empty without step times.

    A training loss is that of one batch, so it is averaged over a tenth of the run, or ten of them; of fewer than
    twenty there is no curve. The time between two rows is the later one's mean step time for each step; where that
    covers warm-up, it is the run's median step time.

    Args:
        record: the record of a measured run.
        series: those metrics of `SERIES_KEYS` that its history has.
    """
    median_ms = figure(record, STEP_MS)
    times = series.get(STEP_MS)
    if median_ms is None or times is None:
        return {}
    clock = _clock(times, median_ms, _warmups(record))
    curves = {}
    for key in (VAL_LOSS, TRAIN_LOSS):
        steps, losses = _finite(series.get(key))
        window = 1 if key == VAL_LOSS else max(MIN_SMOOTHED, math.ceil(SMOOTHED_SHARE * losses.size))
        if losses.size >= (MIN_EVALUATIONS if key == VAL_LOSS else 2 * window):
            sums = np.cumsum(np.concatenate(([0.0], losses)))
            curves[key] = LossCurve(
                losses=losses if window == 1 else (sums[window:] - sums[:-window]) / window,
                seconds=np.interp(steps[window - 1 :], *clock),
                joules=_energy(series.get(ENERGY_J), steps[window - 1 :]),
            )
    return curves


def _warmups(record: RunRecord) -> list[tuple[int, int]]:
    """The steps that were warm-up: of each process, from a step on (exclusive) to another."""
    told = [(attempt.from_step or 0, attempt.warmup_steps) for attempt in record.attempts]
    known = [(begin, begin + num_steps) for begin, num_steps in told if num_steps is not None]
    return known or [(0, record.config.get("trainer", {}).get("warmup_steps", 0))]


def _clock(times: Series, median_ms: float, warmups: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    """Steps and seconds of training up to the end of each, from none on."""
    before = np.concatenate(([0.0], times.steps[:-1]))
    covers_warmup = np.zeros(before.shape, dtype=bool)
    for begin, end in warmups:
        covers_warmup |= (before < end) & (times.steps > begin)
    step_ms = np.where(covers_warmup | ~_usable(times.values), median_ms, times.values)
    seconds = np.cumsum((times.steps - before) * step_ms) / 1000
    return np.concatenate(([0.0], times.steps)), np.concatenate(([0.0], seconds))


def _energy(energy: Series | None, steps: Floats) -> Floats | None:
    """Joules at `steps`; None unless they were measured from the first of them to the last."""
    known, joules = _finite(energy)
    if not known.size or known[0] > steps[0] or known[-1] < steps[-1]:
        return None
    return np.interp(steps, known, joules)


def _finite(series: Series | None) -> tuple[Floats, Floats]:
    if series is None:
        return np.empty(0), np.empty(0)
    known = _usable(series.values)
    return series.steps[known], series.values[known]


def _usable(values: Floats) -> NDArray[np.bool_]:
    """Mark the values that a measurement can give, as `runs.figure`."""
    size = np.abs(values)
    usable: NDArray[np.bool_] = (values == 0) | (size >= SMALLEST_FIGURE) & (size <= LARGEST_FIGURE)
    return usable
