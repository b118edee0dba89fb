"""Losses over training time, and the time until an arm reaches the baseline's final loss within the parity margin.

Without the margin, an arm that learns exactly like the baseline would miss it in every other pair by noise.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ampsweep.analysis.figure_keys import VAL_LOSS, FigureKeys
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import LARGEST_FIGURE, SMALLEST_FIGURE, STEP_MS, Run, figure, metric_words
from ampsweep.analysis.statistics import Estimate, mean_ratio
from ampsweep.finding import Finding
from ampsweep.records import RunRecord

TRAIN_LOSS: Final = "train/loss"
SERIES_KEYS: Final = (STEP_MS, VAL_LOSS, TRAIN_LOSS)  # metrics of the history that the curves need

MIN_EVALUATIONS: Final = 5  # fewest validation losses for a curve
SMOOTHED_SHARE: Final = 0.1
MIN_SMOOTHED: Final = 10  # window of the trailing mean over training losses: a share of their number, and at least 10

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MetricSeries:
    """A metric by ascending steps; may hold non-finite values."""

    steps: Floats
    values: Floats


@dataclass(frozen=True)
class LossCurve:
    """A loss over a training; both arrays have the same length, at least 1."""

    losses: Floats
    seconds: Floats  # cumulative step time, without evaluation and checkpoints, warm-up counted at the normal pace

    @property
    def final(self) -> float:
        return float(self.losses[-1])

    def reach(self, target: float) -> float | None:
        """Seconds until the loss first reaches `target`, interpolated linearly; None if it does not."""
        below = np.flatnonzero(self.losses <= target)
        if below.size == 0:
            return None
        last = int(below[0])
        first = max(last - 1, 0)
        drop = float(self.losses[first] - self.losses[last])
        share = (float(self.losses[first]) - target) / drop if drop > 0 else 1.0
        return float(self.seconds[first] + share * (self.seconds[last] - self.seconds[first]))


def loss_curves(record: RunRecord, series: Mapping[str, MetricSeries]) -> dict[str, LossCurve]:
    """Build the curves of `val/loss` (at least five evaluations) and `train/loss` (two windows of a tenth of the run or
    ten losses, over which it is averaged) from `SERIES_KEYS` of a measured run; none without step times.

    Each step between two rows takes the later row's mean step time, or the run's median if the row covers warm-up.
    """
    median_ms = figure(record, STEP_MS)
    times = series.get(STEP_MS)
    if median_ms is None or times is None:
        return {}
    clock = _clock(times, median_ms, _warmups(record))
    curves = {}
    for key in (VAL_LOSS, TRAIN_LOSS):
        steps, losses = _finite(series.get(key))
        if record.best is not None and record.config.get("trainer", {}).get("patience") and key == VAL_LOSS:
            steps, losses = steps[steps <= record.best.step], losses[steps <= record.best.step]  # later ones are waits
        window = 1 if key == VAL_LOSS else max(MIN_SMOOTHED, math.ceil(SMOOTHED_SHARE * losses.size))
        if losses.size >= (MIN_EVALUATIONS if key == VAL_LOSS else 2 * window):
            sums = np.cumsum(np.concatenate(([0.0], losses)))
            curves[key] = LossCurve(
                losses=losses if window == 1 else (sums[window:] - sums[:-window]) / window,
                seconds=np.interp(steps[window - 1 :], *clock),
            )
    return curves


def _warmups(record: RunRecord) -> list[tuple[int, int]]:
    """The warm-up of each process: first step (exclusive) and last step."""
    attempts = [(attempt.from_step or 0, attempt.warmup_steps) for attempt in record.attempts]
    known = [(begin, begin + num_steps) for begin, num_steps in attempts if num_steps is not None]
    return known or [(0, record.config.get("trainer", {}).get("warmup_steps", 0))]


def _clock(times: MetricSeries, median_ms: float, warmups: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    """Steps from 0, and seconds of training at the end of each."""
    before = np.concatenate(([0.0], times.steps[:-1]))
    covers_warmup = np.zeros(before.shape, dtype=bool)
    for begin, end in warmups:
        covers_warmup |= (before < end) & (times.steps > begin)
    step_ms = np.where(covers_warmup | ~_usable(times.values), median_ms, times.values)
    seconds = np.cumsum((times.steps - before) * step_ms) / 1000
    return np.concatenate(([0.0], times.steps)), np.concatenate(([0.0], seconds))


def _finite(series: MetricSeries | None) -> tuple[Floats, Floats]:
    if series is None:
        return np.empty(0), np.empty(0)
    known = _usable(series.values)
    return series.steps[known], series.values[known]


def _usable(values: Floats) -> NDArray[np.bool_]:
    size = np.abs(values)
    usable: NDArray[np.bool_] = (values == 0) | (size >= SMALLEST_FIGURE) & (size <= LARGEST_FIGURE)
    return usable


Curves = Mapping[Path, Mapping[str, LossCurve]]  # run directory -> loss metric -> curve


class TimeToLoss(Finding):
    metric: str  # `val/loss` if every run was evaluated often enough, else the smoothed `train/loss`
    target: float
    margin_pct: float
    n: int  # pairs of complete, uncontaminated runs with the curve
    num_reached: int  # pairs in which the arm reached it; the means below are over these
    baseline_s: float | None
    arm_s: float | None
    speedup: Estimate | None  # baseline's time over the arm's, above 1 is sooner; None unless reached in every pair

    @property
    def sentence(self) -> str:
        loss = f"the baseline's final {metric_words(self.metric)} (within {self.margin_pct:g}%)"
        if self.speedup is None:
            return f"reached {loss} in {self.num_reached} of {self.n} pairs"
        return f"reached {loss} {self.speedup.ratio_text} as fast (n={self.n})"


def time_to_loss(pairs: Sequence[Pair], curves: Curves, keys: FigureKeys, *, margin_pct: float) -> TimeToLoss | None:
    """Compare an arm with the baseline by the time to the baseline's final loss; None without curves."""
    for metric in (TRAIN_LOSS,) if keys.is_higher_better else (VAL_LOSS, TRAIN_LOSS):
        found = [both for pair in pairs if (both := _curves_of(pair, curves, metric)) is not None]
        finished = [pair for pair in pairs if _counted(pair.baseline_runs) and _counted(pair.arm_runs)]
        if found and (len(found) == len(finished) or metric == TRAIN_LOSS):
            return _compare(keys.recorded(metric), found, margin_pct)
    return None


def _compare(key: str, pairs: Sequence[tuple[list[LossCurve], list[LossCurve]]], margin_pct: float) -> TimeToLoss:
    targets, times = list[float](), list[tuple[float, float]]()
    for baseline, arm in pairs:
        final = statistics.fmean(curve.final for curve in baseline)
        targets.append(final + margin_pct / 100 * abs(final))
        baseline_time, arm_time = _mean_time(baseline, targets[-1]), _mean_time(arm, targets[-1])
        if baseline_time and arm_time:
            times.append((baseline_time, arm_time))
    baseline_s, arm_s = map(statistics.fmean, zip(*times, strict=True)) if times else (None, None)
    return TimeToLoss(
        metric=key,
        target=statistics.fmean(targets),
        margin_pct=margin_pct,
        n=len(pairs),
        num_reached=len(times),
        baseline_s=baseline_s,
        arm_s=arm_s,
        speedup=mean_ratio(times) if len(times) == len(pairs) else None,
    )


def _counted(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.finished and run.contamination is None and run.record.origin is None]


def _curves_of(pair: Pair, curves: Curves, metric: str) -> tuple[list[LossCurve], list[LossCurve]] | None:
    counted = _counted(pair.baseline_runs), _counted(pair.arm_runs)
    found = [[curves.get(run.directory, {}).get(metric) for run in runs] for runs in counted]
    baseline, arm = ([curve for curve in of if curve is not None] for of in found)
    return (baseline, arm) if baseline and arm and None not in (*found[0], *found[1]) else None


def _mean_time(curves: Sequence[LossCurve], target: float) -> float | None:
    """Mean over repeats of the seconds until `target`; None unless all of them reach it."""
    times = [curve.reach(target) for curve in curves]
    known = [time for time in times if time is not None]
    return statistics.fmean(known) if len(known) == len(times) else None
