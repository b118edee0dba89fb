"""Effects of another word in a series, such as another strategy: each arm there against itself at the first word."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampsweep.analysis.runs import PEAK_MEMORY, STEP_MS, VAL_LOSS, Run
from ampsweep.analysis.statistics import Estimate, mean_difference, mean_ratio
from ampsweep.analysis.workloads import Workload
from ampsweep.config.modes import report_order
from ampsweep.text import GIB

Size = float | str
"""A value of the key that a series varies: a number, or a word."""


@dataclass(frozen=True, kw_only=True)
class SizeStep:
    """One arm at one word of a series against the same arm at the first; pairs are runs of one seed."""

    arm: str
    size: Size
    first: Size
    first_arm: str
    """The arm there: itself, or where a strategy has no choice of what casts, its own kind of that."""
    throughput: Estimate | None
    """Samples a second over those at the first, by the runs' median step times; None without uncontaminated runs."""
    memory_saved_bytes: Estimate | None
    """Peak at the first minus that here, of the fullest rank."""
    memory_saved_pct: Estimate | None
    loss_gap: Estimate | None
    """Final validation loss here minus that at the first; None where a step has another number of samples, which is
    another training."""
    same_samples: bool
    """True if a step has as many samples as at the first."""


def size_steps(sizes: Sequence[Size], workloads: Sequence[Workload]) -> Iterator[SizeStep]:
    """Hold each arm at each of `sizes` but the first against the same arm there."""
    (first, reference), *others = zip(sizes, workloads, strict=True)
    for size, workload in others:
        for arm in sorted({run.arm for run in workload.runs if run.measured}, key=report_order):
            first_arm = arm if any(run.arm == arm for run in reference.runs) else without_choice_of_cast(arm)
            there, here = _alike(first_arm, reference), _alike(arm, workload)
            pairs = [(there[key], runs) for key, runs in here.items() if key in there]
            if pairs:
                yield _step(arm, first_arm, size, first, pairs)


def without_choice_of_cast(arm: str) -> str:
    """The arm's label without what casts: DDP's `amp_bf16` casts as FSDP2's `amp_bf16+mixed_precision=autocast` does.

    >>> without_choice_of_cast("amp_bf16+reduce_dtype=bfloat16+mixed_precision=autocast")
    'amp_bf16+reduce_dtype=bfloat16'
    """
    return "+".join(part for part in arm.split("+") if not part.startswith("mixed_precision="))


def _step(arm: str, first_arm: str, size: Size, first: Size, pairs: Sequence[tuple[list[Run], list[Run]]]) -> SizeStep:
    num_samples = [{_num_samples(run) for run in runs} for runs in pairs[0]]
    same_samples = num_samples[0] == num_samples[1]
    rates = [(there, here) for there, here in (tuple(map(_rate, pair)) for pair in pairs) if there and here]
    peaks = [(a, b) for a, b in (_means(pair, PEAK_MEMORY) for pair in pairs) if a and b is not None]
    finished = [([run for run in a if run.finished], [run for run in b if run.finished]) for a, b in pairs]
    losses = [(a, b) for a, b in (_means(pair, VAL_LOSS) for pair in finished) if a is not None and b is not None]
    return SizeStep(
        arm=arm,
        size=size,
        first=first,
        first_arm=first_arm,
        throughput=mean_ratio([(here, there) for there, here in rates]) if rates else None,
        memory_saved_bytes=mean_difference([(a - b) * GIB for a, b in peaks]) if peaks else None,
        memory_saved_pct=mean_difference([100 * (a - b) / a for a, b in peaks]) if peaks else None,
        loss_gap=mean_difference([b - a for a, b in losses]) if losses and same_samples else None,
        same_samples=same_samples,
    )


def _alike(arm: str, workload: Workload) -> dict[object, list[Run]]:
    """The arm's runs by seed and conditions; a rank has the threads of its share of the cores, and so that differs."""
    found: dict[object, list[Run]] = defaultdict(list)
    for run in workload.runs:
        if run.arm == arm and run.measured:
            conditions = {key: value for key, value in run.conditions.items() if key != "num_threads"}
            found[run.seed, tuple(conditions.items())].append(run)
    return found


def _num_samples(run: Run) -> int:
    """Samples of an optimizer step; records of older versions have those of one process only."""
    identity = run.record.identity
    return identity.global_batch_size or identity.batch_size * identity.grad_accum_steps * identity.world_size


def _rate(runs: Sequence[Run]) -> float | None:
    times = [(run, time) for run in runs if run.contamination is None and (time := run.figure(STEP_MS))]
    return sum(_num_samples(run) / time for run, time in times) / len(times) if times else None


def _means(pair: tuple[Sequence[Run], Sequence[Run]], key: str) -> tuple[float | None, float | None]:
    first, second = ([value for run in runs if (value := run.figure(key)) is not None] for runs in pair)
    return _mean(first), _mean(second)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
