"""Judgements on an arm's speed, memory and learning: a word for each, with its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.parity import Parity, overall_parity
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.analysis.step_limits import StepLimit

SpeedWord = Literal["faster", "slower", "unresolved", "same", "too few pairs", "not measured"]
MemoryWord = Literal["saves", "adds", "unresolved", "same", "too few pairs", "not measured"]
ParityWord = Literal["equivalent", "better", "worse", "inconclusive", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Judgements:
    """One arm against the baseline: a word for a badge on each of three topics, and its figures.

    `unresolved`: the 95% interval does not tell the figure from no difference. `too few pairs`: there is no interval.
    """

    speed: SpeedWord
    speedup: Estimate | None
    memory: MemoryWord
    memory_saved_bytes: Estimate | None
    memory_saved_pct: Estimate | None
    parity: ParityWord
    parities: tuple[Parity, ...]
    """One of the final validation loss, and one of the accuracy where there is one."""
    num_completed_pairs: int
    contaminated: tuple[tuple[str, int], ...]
    """(arm, number of contaminated runs) of the arm and of the baseline, of either as far as it has any."""
    limits: tuple[StepLimit, ...] = ()
    """Limits of the arm's own step that no precision moves."""
    workload_is_small: bool = False
    """True if launching operators limits the baseline's step too, so that the whole workload tells nothing of speed."""
    num_timed: int = 0
    num_unchecked: int = 0
    """Runs that the speedup is of, and those of them of which nothing tells whether anything else slowed them down."""


def judge(arm: ArmComparison, baseline: ArmComparison, parities: Sequence[Parity]) -> Judgements:
    """Judge an arm other than the baseline; `parities` holds its final metrics."""
    return Judgements(
        speed=_speed(arm.speedup),
        speedup=arm.speedup,
        memory=_memory(arm.memory_saved_bytes),
        memory_saved_bytes=arm.memory_saved_bytes,
        memory_saved_pct=arm.memory_saved_pct,
        parity=overall_parity(parities) or "not measured",
        parities=tuple(parities),
        num_completed_pairs=arm.num_completed_pairs,
        contaminated=tuple((one.arm, one.num_contaminated) for one in (arm, baseline) if one.num_contaminated),
        limits=arm.limits,
        workload_is_small=any(limit.kind == "launching" for limit in baseline.limits),
        num_timed=arm.num_timed,
        num_unchecked=arm.num_unchecked,
    )


def _speed(speedup: Estimate | None) -> SpeedWord:
    if speedup is None:
        return "not measured"
    if speedup.n < MIN_PAIRS:
        return "too few pairs"
    if speedup.resolves(1.0):
        return "faster" if speedup.value > 1 else "slower"
    return "same" if speedup.exact else "unresolved"


def _memory(saved: Estimate | None) -> MemoryWord:
    if saved is None:
        return "not measured"
    if saved.value == 0 and saved.exact:
        return "same"
    if saved.interval is None and not saved.exact:
        return "too few pairs"
    if not saved.resolves(0.0):
        return "unresolved"
    return "saves" if saved.value > 0 else "adds"
