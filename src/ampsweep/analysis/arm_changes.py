"""What became of an arm's speed, memory and final loss between two sweeps, OLD and NEW.

A figure regressed if its interval lies wholly beyond its margin on the bad side; where the interval does not exclude
that, or there is none, the figure is not known. Intervals are those of single figures, without correction for their
number.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ampsweep.analysis.figure_keys import PEAK_MEMORY, VAL_LOSS, FigureKeys
from ampsweep.analysis.judgements import Parity, ParityWord, final_parities, worst
from ampsweep.analysis.pairing import Pair, paired_figures
from ampsweep.analysis.runs import STEP_MS, Run, metric_words
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, geometric_mean, in_brackets, mean_difference, mean_ratio
from ampsweep.analysis.sweep_pairs import Side
from ampsweep.text import GIB, first_line, num_bytes, plural, seeds_text

_FAULTS: Final = frozenset({"oom", "diverged", "failed", "unsupported", "disproved"})
"""Outcomes that are regressions of a training that completed before; an interrupted one tells nothing."""


@dataclass(frozen=True, kw_only=True)
class CostChange:
    """A cost of an arm, its step time in ms or its peak memory in bytes, over its pairs."""

    old: float
    new: float
    ratio: Estimate  # OLD's over NEW's, geometric mean: below 1 is worse
    verdict: ParityWord
    not_worse: bool  # True if the interval excludes a regression

    @property
    def growth_pct(self) -> Estimate:
        return self.ratio.mapped(lambda ratio: 100 * (1 / ratio - 1))

    @property
    def growth_text(self) -> str:
        value, ends = self.growth_pct.text(sign=True)
        return f"{value}%{in_brackets(ends)}"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Runs with a fault where OLD's completed."""

    outcome: str
    seeds: tuple[int, ...]
    cause: str  # the first run's


@dataclass(frozen=True, kw_only=True)
class ArmChange:
    """A figure that no pair has is None."""

    arm: str
    num_pairs: int  # of runs that completed in their mode and took all of their steps
    speed: CostChange | None
    memory: CostChange | None
    memory_added_bytes: Estimate | None
    losses: tuple[float, float] | None  # mean final validation losses of OLD and NEW
    loss_gap: Estimate | None  # NEW's minus OLD's
    parities: tuple[Parity, ...]
    lost: tuple[Lost, ...]
    num_contaminated: int  # runs of both sweeps whose speed does not count
    num_unchecked: int  # timed runs with unknown contamination
    statuses: dict[Side, dict[str, int]]  # number of runs by `Run.outcome`
    keys: FigureKeys = field(repr=False)

    @property
    def has_completed(self) -> bool:
        """True if OLD has a run that completed, without which nothing can regress."""
        return not {"completed", "cut short"}.isdisjoint(self.statuses["OLD"])

    @property
    def parity(self) -> ParityWord:
        return worst(self.parities)

    @property
    def is_better(self) -> bool:
        costs = [cost.verdict for cost in (self.speed, self.memory) if cost is not None]
        return "better" in (*costs, self.parity)

    @property
    def regressions(self) -> Iterator[str]:
        """Clauses that follow the arm's name."""
        for lost in self.lost:
            outcome = "out of memory" if lost.outcome == "oom" else lost.outcome
            cause = f" ({of})" if (of := lost.cause.removeprefix(outcome).lstrip(": ")) else ""
            yield f"is {outcome} in {seeds_text(lost.seeds)}, where OLD completed{cause}"
        if self.speed is not None and self.speed.verdict == "worse":
            yield f"is slower, {self.speed.ratio.ratio_text}, n={self.speed.ratio.n}"
        if self.memory is not None and self.memory_added_bytes is not None and self.memory.verdict == "worse":
            more = f"{num_bytes(self.memory_added_bytes.value)} more {self.keys.memory_words}"
            yield f"needs {more}, {self.memory.growth_text}, n={self.memory.ratio.n}"
        for parity in self.parities:
            if parity.verdict == "worse":
                yield f"has a worse {metric_words(parity.metric)}, {parity.grounds}"

    @property
    def not_known(self) -> Iterator[tuple[str, str]]:
        """The figures of which a regression is neither shown nor excluded, each with the reason."""
        if not self.has_completed:
            return
        for topic, cost in (("speed", self.speed), ("memory", self.memory)):
            if cost is None:
                busy = topic == "speed" and self.num_contaminated
                because = f" ({plural(self.num_contaminated, 'contaminated run')})" if busy else ""
                yield topic, f"measured in no pair{because}"
            elif cost.verdict == "inconclusive" and not cost.not_worse:
                n, text = cost.ratio.n, cost.ratio.ratio_text if topic == "speed" else cost.growth_text
                few = f" in {plural(n, 'pair')}, at least {MIN_PAIRS} are needed"
                yield (
                    topic,
                    text + (f" may be beyond the margin, n={n}: run more seeds" if cost.ratio.interval else few),
                )
        if not self.parities:
            yield self.keys.metric_words, "measured in no pair"
        for parity in self.parities:
            if parity.verdict == "inconclusive" and not parity.not_worse:
                yield metric_words(parity.metric), parity.grounds


def arm_change(arm: str, pairs: Sequence[Pair], margin_pct: float, tolerance_pct: float) -> ArmChange:
    keys = pairs[0].arm_runs[0].keys
    runs = [run for pair in pairs for run in (*pair.baseline_runs, *pair.arm_runs)]
    # Of a mode that a device emulates only the losses may be compared.
    real = [pair for pair in pairs if not any(run.emulated for run in (*pair.baseline_runs, *pair.arm_runs))]
    times, losses = paired_figures(real, STEP_MS), [*paired_figures(pairs, VAL_LOSS).values()]
    peaks = [(GIB * before, GIB * after) for before, after in paired_figures(real, PEAK_MEMORY).values()]
    timed = [run for pair in real if pair.pair_key in times for run in (*pair.baseline_runs, *pair.arm_runs)]
    sides: dict[Side, list[Run]] = {"OLD": [run for pair in pairs for run in pair.baseline_runs]}
    sides["NEW"] = [run for pair in pairs for run in pair.arm_runs]
    return ArmChange(
        arm=arm,
        num_pairs=sum(pair.completed for pair in pairs),
        speed=_cost([*times.values()], geometric_mean, tolerance_pct, MIN_PAIRS),
        memory=_cost(peaks, statistics.fmean, tolerance_pct, 2),  # equal bytes in two pairs are exact
        memory_added_bytes=mean_difference([after - before for before, after in peaks]),
        losses=_means(losses, statistics.fmean) if losses else None,
        loss_gap=mean_difference([after - before for before, after in losses]),
        parities=final_parities(pairs, keys, margin_pct=margin_pct),
        lost=tuple(_lost(pairs)),
        num_contaminated=sum(run.measured and run.contamination is not None for run in runs),
        num_unchecked=sum(run.unknown_contamination is not None for run in timed),
        statuses={side: dict(Counter(run.outcome for run in of)) for side, of in sides.items()},
        keys=keys,
    )


_Pairs = Sequence[tuple[float, float]]
_Mean = Callable[[Sequence[float]], float]


def _means(pairs: _Pairs, mean: _Mean) -> tuple[float, float]:
    return mean([old for old, _ in pairs]), mean([new for _, new in pairs])


def _cost(pairs: _Pairs, mean: _Mean, tolerance_pct: float, min_exact: int) -> CostChange | None:
    """Judge a cost; `min_exact`: so many equal ratios are exact."""
    ratio = mean_ratio(pairs)
    if ratio is None:
        return None
    worst_ratio, best_ratio = 1 / (1 + tolerance_pct / 100), 1 + tolerance_pct / 100
    low, high = ratio.interval or ((ratio.value,) * 2 if ratio.exact and ratio.n >= min_exact else (0.0, math.inf))
    verdict: ParityWord = "inconclusive"
    if high < worst_ratio:
        verdict = "worse"
    elif low > best_ratio:
        verdict = "better"
    elif worst_ratio <= low and high <= best_ratio:
        verdict = "equivalent"
    old, new = _means(pairs, mean)
    return CostChange(old=old, new=new, ratio=ratio, verdict=verdict, not_worse=low >= worst_ratio)


def _lost(pairs: Sequence[Pair]) -> Iterator[Lost]:
    """Faults of NEW's runs, by outcome, in pairs of which OLD has completed and NEW has not."""
    were_fine = [pair for pair in pairs if any(run.finished for run in pair.baseline_runs)]
    lost = [pair.arm_runs for pair in were_fine if not any(run.measured for run in pair.arm_runs)]
    faults = [run for runs in lost for run in runs if run.outcome in _FAULTS]
    for outcome in dict.fromkeys(run.outcome for run in faults):
        own = [run for run in faults if run.outcome == outcome]
        cause = "; ".join(own[0].contradictions) or first_line(own[0].record.error or "")
        yield Lost(outcome=outcome, seeds=tuple(sorted({run.seed for run in own})), cause=cause)
