"""An arm as a candidate to train in: refused, still to be decided, or eligible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.runs import Run
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.text import first_line

MAX_SPEED_DOUBT: Final = 1.1
"""Factor of the baseline's speed within which a speed must be known to lie if the two are not resolved."""

_WITHOUT_FIGURES: Final = ("unsupported", "oom", "diverged", "interrupted", "failed", "disproved", "cut short")

RefusalKind = Literal["unsupported", "disproved", "diverged", "mostly failing", "worse"]
OpenKind = Literal["cut short", "too few pairs", "speed not known", "no final loss", "parity open", "too small"]
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

    @property
    def arm(self) -> str:
        return self.figures.arm

    @property
    def speed_is_known(self) -> bool:
        """True if its speed is resolved from the baseline's, or known to be about the same."""
        speedup = self.figures.speedup
        return speedup is not None and _is_known(speedup)

    @property
    def open(self) -> OpenKind | None:
        """The first thing that is missing to judge the arm by; None if nothing is."""
        if self.too_few_pairs is not None:
            return "cut short" if "cut short" in self.figures.statuses else "too few pairs"
        if not self.speed_is_known:
            return "speed not known"
        if self.judgements.parity == "not measured":
            return "no final loss"
        return None if all(one.not_worse for one in self.judgements.parities) else "parity open"


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


def refusal(runs: Sequence[Run], baseline_runs: Sequence[Run], parities: Sequence[Parity]) -> Refusal | None:
    """Find the first reason to refuse the arm of `runs`; None if there is none.

    - every run is `unsupported`;
    - the proof of a run contradicts its mode;
    - a run diverged with a seed (and all else) with which the baseline did not;
    - more than half of the runs ended out of memory or failed;
    - a final metric is worse than the baseline's by more than the margin.
    """
    return (
        _unsupported(runs)
        or _disproved(runs)
        or _diverged(runs, baseline_runs)
        or _mostly(runs, "oom", "failed")
        or next((Refusal(kind="worse", parity=one) for one in parities if one.verdict == "worse"), None)
    )


def baseline_refusal(runs: Sequence[Run]) -> Refusal | None:
    """The reason why the baseline's runs are nothing to compare with: more than half of them ended without figures."""
    return _unsupported(runs) or _mostly(runs, "disproved", "diverged", "oom", "failed")


def _is_known(speedup: Estimate) -> bool:
    if speedup.exact or speedup.resolves(1.0):
        return True
    ends = speedup.interval
    return ends is not None and ends[0] >= 1 / MAX_SPEED_DOUBT and ends[1] <= MAX_SPEED_DOUBT


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


def _error(run: Run) -> str | None:
    return first_line(run.record.error) if run.record.error else None


def _seeds(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in runs}))
