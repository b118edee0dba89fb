"""The figures of an arm in a workload, compared with the baseline by pairs."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ampsweep.analysis.figure_keys import PEAK_MEMORY, VAL_LOSS, FigureKeys
from ampsweep.analysis.pairing import Pair, figures_of_runs, one_side, paired_figures
from ampsweep.analysis.rank_table import RankTable, ranks_of_arm
from ampsweep.analysis.run_findings import RunFinding, findings_of_arm
from ampsweep.analysis.runs import SKIPPED_STEPS, STEP_MS, VAL_ACCURACY, Run
from ampsweep.analysis.statistics import (
    CONFIDENCE,
    MIN_PAIRS,
    Estimate,
    Spread,
    geometric_mean,
    known_median,
    mean_difference,
    mean_ratio,
    saved_pct,
    spread,
)
from ampsweep.analysis.step_limits import MIN_PEAK_BYTES, LimitedArm, SmallPeak, StepLimit, operator_time, step_limits
from ampsweep.finding import Finding
from ampsweep.metrics import AUTOCAST_PENALTY
from ampsweep.text import GIB


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """An arm of a workload; a figure that was not measured is None. Step time, peak memory, loss and accuracy are over
    an arm's pairs (the baseline's runs in any), as speedup, saving and gap are; without pairs over all of its runs."""

    arm: str
    is_baseline: bool
    num_runs: int
    num_pairs: int  # pairs with the baseline, cut short or not
    num_completed_pairs: int  # pairs in which both arms took all of their steps
    num_expected_pairs: int  # pairs if both had completed every seed that either was run with
    statuses: dict[str, int]  # number of runs by `Run.outcome`
    num_timed: int  # runs behind the speedup, including the baseline's; for the baseline behind all speedups
    num_unchecked: int  # timed runs with unknown contamination
    step_ms: float | None  # geometric mean of the uncontaminated runs' median step times
    disturbed_step_ms: float | None  # over all pairs, where the clean ones are too few for an interval; decides nothing
    disturbed_speedup: Estimate | None
    num_operators: int | None  # median over runs of the operators in a traced step; None if compiled
    us_per_operator: float | None
    limits: tuple[StepLimit, ...]
    speedup: Estimate | None  # baseline's step time over this arm's, above 1 is faster: geometric mean over clean pairs
    peak_memory_bytes: float | None  # mean peak of allocated tensor bytes after warm-up
    predicted_memory_bytes: float | None  # median over runs, including runs out of memory
    prediction_error_pct: float | None  # median of predicted minus measured peak, in percent of the measured peak
    unvouched: tuple[str, ...]
    predicted_step_ms: float | None  # median over runs, as the error in percent of the measured step time
    step_error_pct: float | None
    memory_saved_bytes: Estimate | None  # baseline's peak minus this arm's
    memory_saved_pct: Estimate | None
    val_loss: Spread | None
    loss_gap: Estimate | None  # final validation loss minus the baseline's: positive is worse
    loss_gap_pct: float | None  # in percent of the baseline's mean loss in these pairs
    val_accuracy: Spread | None
    autocast_penalty: Estimate | None  # final validation loss under autocast minus in full precision: mean over runs
    skipped_steps: int | None  # total over runs
    dtypes: dict[str, str]  # see `Run.dtypes`
    casts: str | None  # see `Run.casts`
    ranks: RankTable | None
    notes: tuple[Finding, ...]
    keys: FigureKeys = field(default_factory=FigureKeys, repr=False)

    def figure(self, key: str) -> float | None:
        """Figure of metric `key` in its unit; None for metrics shown as medians over runs."""
        figures = {
            STEP_MS: self.step_ms,
            PEAK_MEMORY: None if self.peak_memory_bytes is None else self.peak_memory_bytes / GIB,
            VAL_LOSS: None if self.val_loss is None else self.val_loss.mean,
            VAL_ACCURACY: None if self.val_accuracy is None else self.val_accuracy.mean,
            AUTOCAST_PENALTY: None if self.autocast_penalty is None else self.autocast_penalty.value,
        }
        return figures.get(key)


def summarise_arm(
    arm: str,
    runs: Sequence[Run],
    baseline_runs: Sequence[Run],
    all_pairs: Sequence[Pair],
    findings: Iterable[RunFinding],
    confidence: float = CONFIDENCE,
    *,
    is_baseline: bool,
) -> ArmComparison:
    """Summarise the `runs` (at least one) of an arm in a workload, given the pairs of all arms and the nominal level of
    the intervals of its effects."""
    pairs = [pair for pair in all_pairs if pair.arm == arm]
    own_pairs = all_pairs if is_baseline else pairs
    seeds = {run.seed for run in (*runs, *baseline_runs)}
    times, memory, losses = (paired_figures(pairs, key) for key in (STEP_MS, PEAK_MEMORY, VAL_LOSS))
    gap = mean_difference([after - before for before, after in losses.values()], confidence)
    baseline_loss = statistics.fmean(before for before, _ in losses.values()) if losses else 0.0
    in_mode = [run for run in runs if not run.contradictions]
    skipped = [value for run in in_mode if (value := run.figure(SKIPPED_STEPS)) is not None]
    timed = _timed_runs(own_pairs, is_baseline=is_baseline)
    operators = operator_time(runs) or (None, None, None)
    counted = Counter(run.outcome for run in runs)
    predictions = [run.record.prediction for run in runs if run.record.prediction is not None]

    def own(key: str) -> list[float]:
        row = one_side(paired_figures(own_pairs, key), of_baseline=is_baseline)
        return [*(row or figures_of_runs(runs, key)).values()]

    step_ms, peaks = [value for value in own(STEP_MS) if value > 0], own(PEAK_MEMORY)
    num_clean, every = len(paired_figures(own_pairs, STEP_MS)), paired_figures(own_pairs, STEP_MS, disturbed=True)
    if num_clean >= min(len(every), 1 if is_baseline else MIN_PAIRS):
        every = {}
    return ArmComparison(
        arm=arm,
        is_baseline=is_baseline,
        num_runs=len(runs),
        num_pairs=len(pairs),
        num_completed_pairs=sum(pair.completed for pair in pairs),
        num_expected_pairs=0 if is_baseline else len(pairs) + len(seeds - {pair.arm_runs[0].seed for pair in pairs}),
        statuses=dict(sorted(counted.items(), key=lambda item: (item[0] != "completed", -item[1], item[0]))),
        num_timed=len(timed),
        num_unchecked=sum(run.unknown_contamination is not None for run in timed),
        step_ms=geometric_mean(step_ms) if step_ms else None,
        disturbed_step_ms=geometric_mean([*one_side(every, of_baseline=is_baseline).values()]) if every else None,
        disturbed_speedup=None if is_baseline else mean_ratio([*every.values()], confidence),
        num_operators=operators[0],
        us_per_operator=operators[2],
        limits=step_limits(runs),
        speedup=mean_ratio([*times.values()], confidence),
        peak_memory_bytes=statistics.fmean(peaks) * GIB if peaks else None,
        predicted_memory_bytes=known_median(run.predicted_bytes for run in runs),
        prediction_error_pct=known_median(run.prediction_error_pct for run in runs),
        unvouched=tuple(sorted({operator.name for of in predictions for operator in of.unvouched or ()})),
        predicted_step_ms=known_median(of.step_ms for of in predictions),
        step_error_pct=known_median(of.step_error_pct for of in predictions),
        memory_saved_bytes=mean_difference([GIB * (before - after) for before, after in memory.values()], confidence),
        memory_saved_pct=mean_difference([saved_pct(*both) for both in memory.values()], confidence),
        val_loss=spread(own(VAL_LOSS)),
        loss_gap=gap,
        loss_gap_pct=None if gap is None or not baseline_loss else 100 * gap.value / abs(baseline_loss),
        val_accuracy=None if runs[0].keys.metric == VAL_ACCURACY else spread(own(VAL_ACCURACY)),
        autocast_penalty=mean_difference([*figures_of_runs(runs, AUTOCAST_PENALTY).values()]),
        skipped_steps=round(sum(skipped)) if skipped else None,
        dtypes=next((known for run in runs if (known := run.dtypes)), {}),
        casts=next((cast for run in runs if (cast := run.casts) is not None), None),
        ranks=ranks_of_arm(runs),
        notes=tuple(findings_of_arm(runs, baseline_runs, findings)),
        keys=runs[0].keys,
    )


def cautions(arms: Iterable[ArmComparison]) -> Iterator[Finding]:
    """Yield why figures may not carry over to larger workloads."""
    for arm in arms:
        yield from (LimitedArm(arm=arm.arm, limit=limit) for limit in arm.limits)
        if arm.is_baseline and arm.peak_memory_bytes is not None and arm.peak_memory_bytes < MIN_PEAK_BYTES:
            yield SmallPeak(arm=arm.arm, peak_bytes=arm.peak_memory_bytes)


def _timed_runs(pairs: Sequence[Pair], *, is_baseline: bool) -> list[Run]:
    compared = paired_figures(pairs, STEP_MS)
    timed = [pair for pair in pairs if pair.pair_key in compared]
    found = [run for pair in timed for run in (*pair.baseline_runs, *(() if is_baseline else pair.arm_runs))]
    return list({run.directory: run for run in found if run.contamination is None}.values())
