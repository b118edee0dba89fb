"""What became of an arm's speed, memory and final loss between two sweeps, OLD and NEW.

A figure regressed if its interval lies wholly beyond its margin on the bad side; where the interval does not exclude
that, or there is none, the figure is not known. Intervals are those of single figures, without correction for their
number.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import neg
from typing import Final

from ampsweep.analysis.arms import ArmComparison, summarise_arm
from ampsweep.analysis.judgements import Judgements, ParityVerdict, final_parities, judge
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.run_findings import Disproved, NotCompleted, RunFinding, findings_of_run, merged
from ampsweep.analysis.runs import Run, metric_words
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, in_brackets
from ampsweep.text import num_bytes, seeds_text

_FAULTS: Final = frozenset({"oom", "diverged", "failed", "unsupported", "disproved"})
"""Outcomes that are regressions of a training that completed before; an interrupted one tells nothing."""


@dataclass(frozen=True, kw_only=True)
class CostChange:
    """The growth of an arm's step time or peak memory, judged by a tolerance."""

    growth_pct: Estimate | None
    verdict: ParityVerdict
    not_worse: bool  # True if the interval excludes a regression

    @property
    def text(self) -> str:
        value, ends = ("", None) if self.growth_pct is None else self.growth_pct.text(sign=True)
        return f"{value}%{in_brackets(ends)}"

    @property
    def unknown(self) -> str:
        """What is known of it, and what it takes to know more."""
        if self.growth_pct is None:
            return "no pair of runs has one that counts"
        needed = "more seeds" if self.growth_pct.interval else f"at least {MIN_PAIRS} pairs"
        return f"{self.text}, n={self.growth_pct.n}; it takes {needed} to tell"


@dataclass(frozen=True, kw_only=True)
class ArmChange:
    old: ArmComparison
    new: ArmComparison  # compared with `old`
    judgements: Judgements
    time: CostChange
    memory: CostChange
    lost: tuple[RunFinding, ...]  # faults of NEW's runs where OLD's completed

    @property
    def arm(self) -> str:
        return self.new.arm

    @property
    def has_completed(self) -> bool:
        """True if OLD has a run that completed, without which nothing can regress."""
        return not {"completed", "cut short"}.isdisjoint(self.old.statuses)

    @property
    def is_better(self) -> bool:
        return "better" in (self.time.verdict, self.memory.verdict, self.judgements.parity)

    @property
    def regressions(self) -> Iterator[str]:
        """Clauses that follow the arm's name."""
        for lost in self.lost:
            outcome = "out of memory" if lost.name == "oom" else lost.name
            cause = f" ({of})" if (of := lost.why.removeprefix(outcome).lstrip(": ")) else ""
            yield f"is {outcome} in {seeds_text(lost.seeds)}, where OLD completed{cause}"
        speedup, saved = self.new.speedup, self.new.memory_saved_bytes
        if speedup is not None and self.time.verdict == "worse":
            yield f"is slower, {speedup.ratio_text}, n={speedup.n}"
        if saved is not None and self.memory.verdict == "worse":
            more = f"{num_bytes(-saved.value)} more {self.new.keys.memory_words}"
            yield f"needs {more}, {self.memory.text}, n={saved.n}"
        for parity in self.judgements.parities:
            if parity.verdict == "worse":
                yield f"has a worse {metric_words(parity.metric)}, {parity.grounds}"

    @property
    def not_known(self) -> Iterator[tuple[str, str]]:
        """The figures of which a regression is neither shown nor excluded, each with what is known of it."""
        if not self.has_completed:
            return
        metric, parities = self.new.keys.metric_words, self.judgements.parities
        for name, words, of in (("speed", "step time", self.time), ("memory", self.new.keys.memory_words, self.memory)):
            if of.verdict == "inconclusive" and not of.not_worse:
                yield name, f"{words}: {of.unknown}"
        if not parities:
            yield metric, f"no final {metric} to compare"
        for parity in parities:
            if parity.verdict == "inconclusive" and not parity.not_worse:
                yield metric_words(parity.metric), parity.sentence


def arm_change(arm: str, pairs: Sequence[Pair], *, margin_pct: float, tolerance_pct: float) -> ArmChange:
    """Compare an arm's runs in `pairs`, of which OLD's are the baseline's."""
    of_old = [run for pair in pairs for run in pair.baseline_runs]
    of_new = [run for pair in pairs for run in pair.arm_runs]
    measured = [pair for pair in pairs if _trained(pair.baseline_runs) and _trained(pair.arm_runs)]
    old = summarise_arm(f"{arm} in OLD", of_old, of_old, measured, (), is_baseline=True)
    new = summarise_arm(arm, of_new, of_old, measured, (), is_baseline=False)
    if any(run.emulated for run in (*of_old, *of_new)):  # then only the losses may be compared
        new = replace(new, speedup=None, disturbed_speedup=None, memory_saved_bytes=None, memory_saved_pct=None)
    if new.disturbed_step_ms is not None and new.disturbed_speedup is not None:  # OLD's over the same pairs
        old = replace(old, disturbed_step_ms=new.disturbed_step_ms * new.disturbed_speedup.value)
    speedup, saved = new.speedup, new.memory_saved_pct
    longer = None if speedup is None else speedup.mapped(lambda ratio: 100 * (1 / ratio - 1))
    larger = None if saved is None else saved.mapped(neg)
    return ArmChange(
        old=old,
        new=new,
        judgements=judge(new, final_parities(measured, new.keys, margin_pct=margin_pct)),
        time=_cost_change(longer, tolerance_pct, MIN_PAIRS),
        memory=_cost_change(larger, tolerance_pct, 2),  # equal bytes in two pairs are exact
        lost=merged(_lost(pairs)),
    )


def _trained(runs: Sequence[Run]) -> bool:
    return any(run.measured for run in runs)


def _cost_change(growth_pct: Estimate | None, tolerance_pct: float, min_exact: int) -> CostChange:
    """Judge a growth in percent; `min_exact`: so many equal values are exact."""
    low, high = -math.inf, math.inf
    if growth_pct is not None and growth_pct.interval is not None:
        low, high = growth_pct.interval
    elif growth_pct is not None and growth_pct.exact and growth_pct.n >= min_exact:
        low = high = growth_pct.value
    verdict: ParityVerdict = "inconclusive"
    if low > tolerance_pct:
        verdict = "worse"
    elif high < -tolerance_pct:
        verdict = "better"
    elif -tolerance_pct <= low and high <= tolerance_pct:
        verdict = "equivalent"
    return CostChange(growth_pct=growth_pct, verdict=verdict, not_worse=high <= tolerance_pct)


def _lost(pairs: Sequence[Pair]) -> Iterator[RunFinding]:
    for pair in pairs:
        if any(run.finished for run in pair.baseline_runs) and not _trained(pair.arm_runs):
            found = (of for run in pair.arm_runs if run.outcome in _FAULTS for of in findings_of_run(run))
            yield from (of for of in found if isinstance(of, NotCompleted | Disproved))
