"""An arm as a candidate to train in: refused, still to be decided, or eligible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.costs import Cost, CostKind, Ranking, cost_of
from ampsweep.analysis.goal import Goal
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.runs import PEAK_MEMORY, Run
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.text import first_line

_WITHOUT_FIGURES: Final = ("unsupported", "oom", "diverged", "interrupted", "failed", "disproved", "cut short")

RefusalKind = Literal["unsupported", "disproved", "diverged", "mostly failing", "emulated", "worse", "over memory"]
OpenKind = Literal[
    "cut short", "too few pairs", "speed not known", "energy not known", "no final loss", "parity open", "too small"
]
"""The first thing that is missing to judge an arm by; `too small` concerns the workload."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The reason to refuse an arm whatever its speed, with the facts of its kind."""

    kind: RefusalKind
    cause: str | None = None
    """The text in the first run's record."""
    seeds: tuple[int, ...] = ()
    """Seeds of the runs with this text."""
    other_seeds: tuple[int, ...] = ()
    """Seeds of runs that diverged with another text."""
    outcome: str | None = None
    num_such: int = 0
    num_runs: int = 0
    """Number of the arm's runs, of which `num_such` have that `outcome`."""
    parity: Parity | None = None
    """The parity of the metric that is worse."""
    peak_bytes: float | None = None
    """The largest peak of its runs, on the fullest rank, where that is over the memory given (`limit_bytes`)."""
    limit_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class TooFewPairs:
    """The reason why nothing is concluded about an arm: fewer than three pairs completed in both arms."""

    baseline: str
    unsupported: bool
    """No run of the arm can run on this device."""
    num_completed: int
    num_expected: int
    failures: Mapping[str, int]
    """Runs of the arm that give no complete pair, by outcome."""
    baseline_failures: Mapping[str, int]
    num_without_partner: int
    """Completed runs without a baseline run to pair with."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An arm other than the baseline, with all that a recommendation looks at."""

    figures: ArmComparison
    judgements: Judgements
    pairs: tuple[Pair, ...]
    refusal: Refusal | None
    too_few_pairs: TooFewPairs | None
    """The reason why nothing is concluded; None for an arm with three completed pairs."""
    time_to_loss: TimeToLoss | None

    @property
    def arm(self) -> str:
        return self.figures.arm

    @property
    def is_judged(self) -> bool:
        """True if it is not refused and three pairs completed."""
        return self.refusal is None and self.too_few_pairs is None

    @property
    def open_parity(self) -> OpenKind | None:
        """The first thing that is missing to judge its learning by; None if nothing is."""
        if self.judgements.parity == "not measured":
            return "no final loss"
        return None if all(one.not_worse for one in self.judgements.parities) else "parity open"

    def cost(self, kind: CostKind) -> Cost:
        """Its cost beside the baseline's."""
        return cost_of(kind, self.pairs, self.time_to_loss)

    def open(self, ranking: Ranking) -> OpenKind | None:
        """The first thing that is missing to judge the arm by; None if nothing is."""
        if self.too_few_pairs is not None:
            return "cut short" if "cut short" in self.figures.statuses else "too few pairs"
        cost = self.cost(ranking.cost)
        if cost.is_known or cost.is_more:
            return self.open_parity
        missing: OpenKind = "speed not known" if ranking.objective == "time" else "energy not known"
        return (self.open_parity or missing) if ranking.is_to_loss else missing


def too_few_pairs(arm: ArmComparison, baseline: ArmComparison) -> TooFewPairs | None:
    """The pairs that are missing, with their causes; None for an arm with at least three completed in both arms."""
    if arm.num_completed_pairs >= MIN_PAIRS:
        return None
    return TooFewPairs(
        baseline=baseline.arm,
        unsupported=list(arm.statuses) == ["unsupported"],
        num_completed=arm.num_completed_pairs,
        num_expected=arm.num_expected_pairs,
        failures=_failures(arm),
        baseline_failures=_failures(baseline),
        num_without_partner=arm.num_without_partner,
    )


def refusal(
    runs: Sequence[Run], baseline_runs: Sequence[Run], parities: Sequence[Parity], goal: Goal
) -> Refusal | None:
    """Find the first reason to refuse the arm of `runs`; None if there is none.

    - every run is `unsupported`;
    - the proof of a run contradicts its mode;
    - a run diverged with a seed (and all else) with which the baseline did not;
    - more than half of the runs ended out of memory or failed;
    - its device emulates the mode, so that it has neither speed nor memory;
    - a final metric is worse than the baseline's by more than the margin;
    - a run needed more than the memory given.
    """
    return (
        _unsupported(runs)
        or _disproved(runs)
        or _diverged(runs, baseline_runs)
        or _mostly(runs, "oom", "failed")
        or _emulated(runs)
        or next((Refusal(kind="worse", parity=one) for one in parities if one.verdict == "worse"), None)
        or over_memory(runs, goal)
    )


def baseline_refusal(runs: Sequence[Run]) -> Refusal | None:
    """The reason why the baseline's runs are nothing to compare with: more than half of them ended without figures."""
    return _unsupported(runs) or _mostly(runs, "disproved", "diverged", "oom", "failed")


def over_memory(runs: Sequence[Run], goal: Goal) -> Refusal | None:
    """Refuse an arm any of whose runs needed more than the memory given; a run without a peak tells nothing."""
    limit = goal.memory_bytes
    peaks = [peak for run in runs if run.measured and (peak := run.num_bytes(PEAK_MEMORY)) is not None]
    if limit is None or not peaks or max(peaks) <= limit:
        return None
    return Refusal(kind="over memory", peak_bytes=max(peaks), limit_bytes=limit)


def _failures(arm: ArmComparison) -> dict[str, int]:
    return {status: count for status, count in arm.statuses.items() if status in _WITHOUT_FIGURES}


def _unsupported(runs: Sequence[Run]) -> Refusal | None:
    if any(run.outcome != "unsupported" for run in runs):
        return None
    return Refusal(kind="unsupported", cause=_error(runs[0]))


def _disproved(runs: Sequence[Run]) -> Refusal | None:
    found = [run for run in runs if run.contradictions]
    if not found:
        return None
    return Refusal(kind="disproved", cause="; ".join(found[0].contradictions), seeds=_seeds(found))


def _diverged(runs: Sequence[Run], baseline_runs: Sequence[Run]) -> Refusal | None:
    """Refuse an arm that diverges alone: if the baseline does too, the learning rate or the data is to blame."""
    baseline_too = {run.record.pair_key for run in baseline_runs if run.outcome == "diverged"}
    found = [run for run in runs if run.outcome == "diverged" and run.record.pair_key not in baseline_too]
    if not found:
        return None
    first = found[0].record.error
    so = [run for run in found if run.record.error == first]
    others = [run for run in found if run.record.error != first]
    return Refusal(kind="diverged", cause=_error(found[0]), seeds=_seeds(so), other_seeds=_seeds(others))


def _mostly(runs: Sequence[Run], *outcomes: str) -> Refusal | None:
    """The first of `outcomes` that more than half of the runs share."""
    for outcome in outcomes:
        found = [run for run in runs if run.outcome == outcome]
        if 2 * len(found) > len(runs):
            cause = None if outcome == "oom" else _error(found[0])
            return Refusal(kind="mostly failing", outcome=outcome, num_such=len(found), num_runs=len(runs), cause=cause)
    return None


def _emulated(runs: Sequence[Run]) -> Refusal | None:
    found = [run.emulated for run in runs if run.measured]
    return Refusal(kind="emulated", cause=found[0]) if found and all(found) else None


def _error(run: Run) -> str | None:
    return first_line(run.record.error) if run.record.error else None


def _seeds(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in runs}))
