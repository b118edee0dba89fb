"""The method behind each figure of a comparison, for every document."""

from collections.abc import Iterator
from typing import Final

from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.reasons import MULTIPLE
from ampsweep.analysis.size_series import MAX_NEIGHBOUR_DISTANCE
from ampsweep.report.columns import COLUMNS, columns_for
from ampsweep.report.sentences import dtype_steps, ranks

_LARGEST_BATCH: Final = (
    "each batch was tried by a short training in a process of its own, until two steps were applied, with an "
    "evaluation; the largest trains while the next one does not, and the throughput is that of a training with it. "
    "Batches are micro-batches. Under trainer.memory_limit_gib the bytes of all live tensors count on a CPU, checked "
    "after each operator, and on CUDA what the allocator reserves. The predicted batch was known before any was "
    "tried, from a step and an evaluation traced without values; the predicted peak is that of a step with the largest "
    "batch (with its error against the measured one)"
)
_MULTIPLES: Final = (
    f"the speedup at a size that is no multiple of {MULTIPLE}, over the speedup at the nearest one that is, within "
    f"{100 * MAX_NEIGHBOUR_DISTANCE:.0f}% of it: geometric mean over seeds with speeds at both [95% t-interval]. It is "
    "decided by three seeds or more whose interval excludes 1, and by no step that is too small to judge speed by"
)
_STEPS: Final = (
    "each arm under one strategy against the same arm under the first one, by pairs of runs of one seed: samples a "
    "second by each run's median step time, geometric mean; peak memory of the fullest rank and final validation loss, "
    "mean differences [95% t-interval]. The verdict of a strategy compares its own arms only"
)
_SEAM: Final = (
    "an uninterrupted run of each precision evaluates in the middle and keeps its checkpoint there; another process "
    "loads it in each precision (parameters and optimizer state in its dtype), evaluates and trains on. The jump of "
    "the training loss is that of its first step minus the uninterrupted run's same step, on the same batch; the "
    "jump of the validation loss is that of the two evaluations of one checkpoint; the gap at the end is that of the "
    "final evaluations, closed if its 90% t-interval over seeds lies within the margin"
)


def method(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Each figure that is shown and how it was taken; then what parity and the words about runs mean."""
    shown = [columns_for(workload.arms) for workload in comparison.workloads]
    for column in COLUMNS:
        if column.explanation and any(column in columns for columns in shown):
            yield column.header, f"{column.explanation}."
    if comparison.workloads:
        yield from _judgements(comparison.margin_pct)
    if any(arm.within_run for workload in comparison.workloads for arm in workload.arms):
        yield (
            "within-run",
            "interquartile range and 95th percentile of the times of a run's steps after warm-up, medians over the "
            "arm's runs; shown while there are fewer than 3. Two runs may differ by far more than the steps of either, "
            "so no verdict rests on it.",
        )
    if any(arm.time_to_loss for workload in comparison.workloads for arm in workload.verdict.arms):
        yield (
            "time to loss",
            "time in steps until the loss (validation loss if evaluated five times or more, else training loss "
            "averaged over a tenth of the run) is first as low as the baseline's at the end of its run of the same "
            "seed and the margin; evaluation and checkpoints are outside, steps of the warm-up count as later ones do. "
            "Energy is the device's since the run began.",
        )
    if any(workload.verdict.front for workload in comparison.workloads):
        yield (
            "front",
            "the arms that no other beats: better in time (or energy), peak memory or final loss, and worse in none of "
            "them. In time and memory 2% count, where the pairs of both resolve it (95% interval of their ratio); in "
            "loss a gap beyond the margin (90% interval). Where an arm may be worse, it beats none.",
        )
    if any(workload.verdict.steps for workload in comparison.workloads):
        yield "steps away from float32", f"{dtype_steps.METHOD}."
    if any(arm.ranks is not None for workload in comparison.workloads for arm in workload.arms):
        yield "ranks", f"{ranks.METHOD}."
    if any(series.steps for series in comparison.series):
        yield "strategies", f"{_STEPS}."
    if any(series.effects for series in comparison.series):
        yield "multiples of 8", f"{_MULTIPLES}."
    if comparison.searches:
        yield "largest batch", f"{_LARGEST_BATCH}."
    if comparison.seams:
        yield "jump at a seam", f"{_SEAM}."
    yield (
        "contaminated",
        "anything else may have changed the run's speed (other processes, heat): its memory and its loss count, its "
        "speed does not.",
    )
    yield "disproved", "what the run computed contradicts its precision mode: nothing of it counts."


def _judgements(margin_pct: float) -> Iterator[tuple[str, str]]:
    yield (
        "parity",
        f"the gap of the final validation loss, pair by pair, against a margin of {margin_pct:g}% of the "
        "baseline's mean loss: equivalent if the gap's 90% t-interval lies inside the margin (two one-sided tests at "
        "5%), worse or better if it lies wholly beyond it, else inconclusive. Fewer than 3 pairs decide nothing.",
    )
    yield (
        "recommendation",
        "the arm that takes least time (or energy) to the loss that the baseline ends at, or where that is not known "
        "of every arm in question, least of a step (by 2% or more, resolved by its pairs), that is not refused, has 3 "
        "completed pairs and is not worse by the margin (90% interval); of arms as fast the one with the smallest peak "
        "memory, then the nearest to the baseline. An arm is refused if it is unsupported, disproved, mostly fails, "
        "diverges where the baseline does not, is worse, or needs more than the memory given. Nothing is recommended "
        "while an undecided arm might be better, or of a workload too small to judge speed by.",
    )
