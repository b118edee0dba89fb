"""Runs that continue another run's checkpoint, and the jump of their loss."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ampsweep.analysis.runs import SKIPPED_STEPS, Run
from ampsweep.analysis.statistics import Spread, spread
from ampsweep.analysis.time_to_loss import TRAIN_LOSS, MetricSeries
from ampsweep.analysis.workloads import arm_rank
from ampsweep.config.modes import own_arm

RESUMED_KEYS: Final = (TRAIN_LOSS, SKIPPED_STEPS)  # metrics examined after a checkpoint
NUM_NEAR_STEPS: Final = 10  # steps within which a fresh scaler finds its scale
AllSeries = Mapping[Path, Mapping[str, MetricSeries]]  # run directory -> metric key -> series


@dataclass(frozen=True, kw_only=True)
class ResumedArm:
    """Runs saved in one arm and resumed in the same or another arm after `step`; losses are of the next step."""

    saved_in: str
    resumed_in: str
    step: int
    num_runs: int
    loss: Spread | None  # loss of the runs that were not interrupted
    loss_jump: Spread | None  # loss of the resumed runs minus it
    skipped_steps: int | None  # steps skipped by the scaler in the first ten, total over runs; None without a scaler


def resumed_arms(
    runs: Sequence[Run], every: Mapping[str, Run], series: AllSeries, *, baseline: str
) -> tuple[ResumedArm, ...]:
    """Compare the resumed `runs` of a workload with the runs they continue, found in `every` by id."""
    alike: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        origin = run.record.origin
        if origin is not None and origin.saved_in is not None and origin.from_step is not None:
            alike[origin.saved_in, own_arm(run.arm), origin.from_step].append(run)
    order = sorted(alike, key=lambda key: (arm_rank(key[0], baseline), arm_rank(key[1], baseline), key[2]))
    return tuple(_resumed_arm(*key, alike[key], every, series) for key in order)


def _resumed_arm(
    saved_in: str, resumed_in: str, step: int, runs: Sequence[Run], every: Mapping[str, Run], series: AllSeries
) -> ResumedArm:
    losses, jumps, skipped = [], [], []
    for run in runs:
        whole = every.get(run.record.origin.saved_by or "") if run.record.origin is not None else None
        of_run, of_whole = (series.get(source.directory, {}) if source is not None else {} for source in (run, whole))
        if whole is not None and whole.pair_key == run.pair_key and not (run.contradictions or whole.contradictions):
            before, after = (_at(known.get(TRAIN_LOSS), step + 1) for known in (of_whole, of_run))
            if before is not None and after is not None:
                losses.append(before)
                jumps.append(after - before)
        if (count := _skipped(of_run.get(SKIPPED_STEPS), of_whole.get(SKIPPED_STEPS), step)) is not None:
            skipped.append(count)
    return ResumedArm(
        saved_in=saved_in,
        resumed_in=resumed_in,
        step=step,
        num_runs=len(runs),
        loss=spread(losses),
        loss_jump=spread(jumps),
        skipped_steps=sum(skipped) if skipped else None,
    )


def _skipped(resumed: MetricSeries | None, whole: MetricSeries | None, step: int) -> int | None:
    """Steps skipped after the checkpoint. A resumed scaler also counted those before; a fresh scaler begins at 0."""
    if resumed is None or not len(near := np.flatnonzero(resumed.steps <= step + NUM_NEAR_STEPS)):
        return None
    return round(float(resumed.values[near[-1]]) - (_at(whole, step) or 0))


def _at(series: MetricSeries | None, step: int) -> float | None:
    if series is None or not len(found := series.values[series.steps == step]) or not np.isfinite(found[0]):
        return None
    return float(found[0])
