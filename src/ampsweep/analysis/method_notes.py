"""How the figures of a comparison are measured, beyond the explanations of table columns."""

from collections.abc import Iterator
from typing import Final

from ampsweep.analysis.comparison import Comparison
from ampsweep.records.sections import FigureSources

_TIME_TO_LOSS: Final = (
    "time in steps until the loss (validation loss if evaluated five times or more, else training loss averaged over a "
    "tenth of the run) is first as low as the baseline's at the end of its run of the same seed and the margin; "
    "evaluation and checkpoints are outside, steps of the warm-up count as later ones do. It ranks no arms."
)
_FRONT: Final = (
    "the Pareto front over step time, peak memory and final loss. In time and memory 2% count if the pairs of both "
    "arms resolve them (95% interval of their ratio), in loss a gap beyond the margin (90% interval). An arm that may "
    "be worse somewhere beats none."
)
_RANKS: Final = (
    "a rank is a process with a device of its own. Peak memory is that of the fullest rank, step time that of the "
    "slowest, and losses are means over ranks. The peak by category is that of the traced step; waiting for ranks is "
    "the time of a step in which a rank's device waits for the others. Figures are medians over runs, times those of "
    "uncontaminated ones."
)
_SIDE_BY_SIDE: Final = (
    "the figures that each arm has under each strategy, as its verdict has them: peak memory of the fullest rank, step "
    "time of the slowest. The verdict of a strategy compares its own arms only."
)
_LARGEST_BATCH: Final = (
    "each batch was tried by a short training in a process of its own, until two steps were applied, with an "
    "evaluation; the largest trains while the next one does not, and the throughput is that of a training with it. "
    "Batches are micro-batches. Under trainer.memory_limit_gib the bytes of all live tensors count on a CPU, checked "
    "after each operator, and on CUDA what the allocator reserves. The predicted batch was known before any was "
    "tried, from a step and an evaluation traced without values; the predicted peak is that of a step with the largest "
    "batch (with its error against the measured one)."
)
_ON_GPU: Final = (
    "the value of torch.cuda.max_memory_allocated after warm-up, for this workload on such a GPU: from the training's "
    "own step, traced without values, as `ampsweep predict predict.target=cuda` does. It includes the allocator's "
    "rounding and cuBLAS workspaces, not the driver's context (about 0.5 GiB) or cuDNN's workspaces. Speeds are those "
    "of `predict.speed=true`, with the range of nine of ten measurements."
)
_RESUMED: Final = (
    "a run loads another run's checkpoint, parameters and optimizer state in its own dtypes, and trains on. The jump "
    "is the training loss of its first step minus that of the same step of the original run: the same batch, and the "
    "same weights but for their dtype. Speed and memory of such an arm are those of its own steps; it has no time to a "
    "loss, and is not recommended."
)
_CONTAMINATED: Final = (
    "anything else may have changed the run's speed (other processes, heat): its memory and its loss count, its speed "
    "does not. Where that leaves fewer than 3 pairs, the table shows the speed of all pairs, marked disturbed; nothing "
    "is concluded from it."
)
_RECOMMENDATION: Final = (
    "the arm with the shortest step (by 2% or more, resolved by its pairs) that is not refused, has 3 completed pairs "
    "and is not worse by the margin (90% interval); of arms as fast the one with the smallest peak "
    "memory, then the nearest to the baseline. An arm is refused if it is unsupported, disproved, mostly fails, "
    "diverges where the baseline does not, is worse, or needs more than the memory given. Nothing is recommended while "
    "an undecided arm might be better. Speeds are those of this workload on this machine: what limits a step "
    "apart from precision is said beside them."
)


_LOOKS: Final = (
    " It is tested after each pair from the third to at most {max_pairs}, and the first decision stands. Each look has "
    "its share of the 5%, hardly any early and most at the end (group-sequential test, Lan-DeMets spending like "
    "O'Brien-Fleming), so that all together err as often as one test."
)
_INTERVALS: Final = (
    "the t-interval of a mean over pairs, at a nominal 98%, which covers the truth in 95% of comparisons although "
    "pairs end when it is narrow."
)


def _from_wandb(taken: FigureSources) -> Iterator[tuple[str, str]]:
    """How figures of a run were taken that is known from W&B alone."""
    if taken.time == "_runtime":
        how = "the median between two logged rows, with waits for data, logging and evaluations of which no row tells"
        yield "step time on W&B", f"wall time by W&B's _runtime and {taken.steps}: {how} the end."
    elif taken.time is not None:
        how = f"the training's own {taken.time}: the median of what it logged, or a total over its steps"
        yield "step time on W&B", f"{how}; by {taken.steps}."
    if taken.memory is not None:
        yield (
            "memory on W&B",
            f"the largest of W&B's samples of {taken.memory}, of which it takes one in 15 s. It is more than the peak "
            "of tensors (the device's context, what the allocator keeps) and may miss a short peak.",
        )


def method(of: Comparison) -> Iterator[tuple[str, str]]:
    arms = [arm for workload in of.workloads for arm in workload.arms]
    verdicts = [workload.verdict for workload in of.workloads]
    named = of.keys.named
    parity = named(
        f"the gap of the final validation loss, pair by pair, against a margin of {of.margin_pct:g}% of the baseline's "
        "mean loss: equivalent if the gap's 90% t-interval lies inside the margin (two one-sided tests at 5%), worse "
        f"or better if it lies wholly beyond it{', higher being better' if of.keys.is_higher_better else ''}, else "
        "inconclusive. Fewer than 3 pairs decide nothing."
    )
    if of.max_pairs is not None:
        parity += _LOOKS.format(max_pairs=of.max_pairs)
    taken = [entry.run.record.taken_from for workload in of.workloads for entry in workload.runs]
    yield from dict.fromkeys(note for of_run in taken for note in _from_wandb(of_run))
    for is_shown, name, text in (
        (bool(of.workloads), "parity", parity),
        (bool(of.workloads) and of.max_pairs is not None, "intervals of effects", _INTERVALS),
        (bool(of.workloads), "recommendation", named(_RECOMMENDATION)),
        (any(arm.time_to_loss for verdict in verdicts for arm in verdict.arms), "time to loss", named(_TIME_TO_LOSS)),
        (any(verdict.front for verdict in verdicts), "front", named(_FRONT)),
        (any(arm.ranks is not None for arm in arms), "ranks", _RANKS),
        (any(series.in_words for series in of.series), "side by side", _SIDE_BY_SIDE),
        (any(workload.on_gpu for workload in of.workloads), "predicted on a GPU", _ON_GPU),
        (bool(of.searches), "largest batch", _LARGEST_BATCH),
        (any(workload.resumed for workload in of.workloads), "jump after a checkpoint", _RESUMED),
        (True, "contaminated", _CONTAMINATED),
        (True, "disproved", "what the run computed contradicts its precision mode: nothing of it counts."),
    ):
        if is_shown:
            yield name, text
