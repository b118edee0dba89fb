"""The time and energy that an arm trains with until it reaches the loss that the baseline ends at.

The target has the margin within which two arms count as having learned the same: without it an arm that learns exactly
as the baseline does would miss it in every other pair, by noise.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsweep.analysis.loss_curves import TRAIN_LOSS, LossCurve
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import VAL_LOSS, Run
from ampsweep.analysis.statistics import Estimate, mean_ratio

Curves = Mapping[Path, Mapping[str, LossCurve]]
"""Run directory -> loss metric -> curve."""


@dataclass(frozen=True, kw_only=True)
class TimeToLoss:
    """Training time and energy of both arms up to the baseline's final loss and the margin, pair by pair."""

    metric: str
    """`val/loss` where every run was evaluated often enough, else the smoothed `train/loss`."""
    target: float
    """The baseline's final loss and the margin, mean over pairs."""
    margin_pct: float
    """The margin, in percent of the baseline's final loss."""
    n: int
    """Pairs of uncontaminated runs that took all of their steps and have the curve."""
    num_reached: int
    """Pairs in which the arm reached it; the means below are over these."""
    baseline_s: float | None
    arm_s: float | None
    speedup: Estimate | None
    """Baseline's time over the arm's: above 1 is sooner. None where the arm did not reach the loss in every pair."""
    baseline_j: float | None
    arm_j: float | None
    energy_ratio: Estimate | None
    """The arm's energy over the baseline's: below 1 is less. As `speedup`, and None without energy figures."""
    seconds: Mapping[str, tuple[float, float]]
    """Pair key -> (baseline, arm); of an arm that did not reach it the time of its whole run, which is too little."""
    joules: Mapping[str, tuple[float, float]]
    """The same of energy, of the pairs that have it."""

    @property
    def reached(self) -> bool:
        """True if the arm reached it in every pair."""
        return self.num_reached == self.n


@dataclass(frozen=True)
class _Reached:
    """Seconds and joules of both arms of a pair; of an arm that did not get there those of its whole run."""

    seconds: tuple[float, float]
    joules: tuple[float, float] | None
    by_arm: bool


def time_to_loss(pairs: Sequence[Pair], curves: Curves, *, margin_pct: float) -> TimeToLoss | None:
    """Compare the arms of `pairs` by the time to the baseline's final loss and `margin_pct` percent of it.

    None where no pair has both curves.
    """
    for metric in (VAL_LOSS, TRAIN_LOSS):
        found = {pair.pair_key: both for pair in pairs if (both := _curves_of(pair, curves, metric)) is not None}
        finished = [pair for pair in pairs if _counted(pair.baseline_runs) and _counted(pair.arm_runs)]
        if found and (len(found) == len(finished) or metric == TRAIN_LOSS):
            return _compare(metric, found, margin_pct)
    return None


def _compare(
    metric: str, pairs: Mapping[str, tuple[list[LossCurve], list[LossCurve]]], margin_pct: float
) -> TimeToLoss:
    finals = {key: statistics.fmean(curve.final for curve in baseline) for key, (baseline, _) in pairs.items()}
    targets = {key: final + margin_pct / 100 * abs(final) for key, final in finals.items()}
    known = {
        key: one for key, (baseline, arm) in pairs.items() if (one := _reach(baseline, arm, targets[key])) is not None
    }
    reached = [one for one in known.values() if one.by_arm]
    times = [one.seconds for one in reached]
    energies = [one.joules for one in reached if one.joules is not None]
    everywhere = len(reached) == len(pairs)
    return TimeToLoss(
        metric=metric,
        target=statistics.fmean(targets.values()),
        margin_pct=margin_pct,
        n=len(pairs),
        num_reached=len(reached),
        baseline_s=_mean(times, 0),
        arm_s=_mean(times, 1),
        speedup=mean_ratio(times) if everywhere else None,
        baseline_j=_mean(energies, 0),
        arm_j=_mean(energies, 1),
        energy_ratio=mean_ratio([(arm, baseline) for baseline, arm in energies])
        if everywhere and len(energies) == len(pairs)
        else None,
        seconds={key: one.seconds for key, one in known.items()},
        joules={key: one.joules for key, one in known.items() if one.joules is not None},
    )


def _counted(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.finished and run.contamination is None]


def _curves_of(pair: Pair, curves: Curves, metric: str) -> tuple[list[LossCurve], list[LossCurve]] | None:
    """The curves of both arms' repeats; None unless each of them has one."""
    found = []
    for runs in (_counted(pair.baseline_runs), _counted(pair.arm_runs)):
        known = [curve for run in runs if (curve := curves.get(run.directory, {}).get(metric)) is not None]
        if not known or len(known) < len(runs):
            return None
        found.append(known)
    return found[0], found[1]


def _reach(baseline: Sequence[LossCurve], arm: Sequence[LossCurve], target: float) -> _Reached | None:
    """Both arms' means over repeats; None where the baseline does not get there, or one of them is there at once."""
    arms = [[(curve.reach(target), curve) for curve in curves] for curves in (baseline, arm)]
    got_there = [all(moment is not None for moment, _ in moments) for moments in arms]
    if not got_there[0]:
        return None
    ends = [[curve.end if moment is None else moment for moment, curve in moments] for moments in arms]
    seconds = [statistics.fmean(moment[0] for moment in moments) for moments in ends]
    if min(seconds) <= 0:
        return None
    energies = [[joules for _, joules in moments if joules is not None] for moments in ends]
    joules = None
    if all(len(known) == len(moments) for known, moments in zip(energies, ends, strict=True)):
        means = [statistics.fmean(known) for known in energies]
        joules = (means[0], means[1]) if min(means) > 0 else None
    return _Reached((seconds[0], seconds[1]), joules, by_arm=got_there[1])


def _mean(pairs: Sequence[tuple[float, float]], side: int) -> float | None:
    return statistics.fmean(pair[side] for pair in pairs) if pairs else None
