"""An arm as a candidate to train in, with the verdict on it: refused, still to be decided, or eligible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.costs import Cost, CostKind, Goal, Ranking, cost_of
from ampsweep.analysis.judgements import Judgements, Parity
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.runs import PEAK_MEMORY, Run, metric_words
from ampsweep.analysis.statistics import MAX_FURTHER_PAIRS, MIN_PAIRS
from ampsweep.analysis.step_limits import TOO_SMALL
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.config.modes import arm_before
from ampsweep.finding import Finding
from ampsweep.text import first_line, plural, seeds_text

_WITHOUT_FIGURES: Final = ("unsupported", "oom", "diverged", "interrupted", "failed", "disproved", "cut short")
_UNSUPPORTED: Final = "unsupported on this device"
LARGER: Final = "compare on a larger model, batch or sequence"


class Refusal(Finding):
    """The reason to refuse an arm whatever its speed."""

    severity = "fault"
    trains: ClassVar[bool] = False
    """True if the arm trains all the same, so that it has a place beside the others."""


class Unsupported(Refusal):
    cause: str
    """The error of the first run."""

    @property
    def sentence(self) -> str:
        return f"unsupported: {self.cause}" if self.cause else _UNSUPPORTED


class OtherArmBefore(Refusal):
    template = "its first steps were in {saved_in}: its speed and memory are those of the rest alone"

    saved_in: str


class ContradictsMode(Refusal):
    template = "{cause} in {seeds:seeds}"

    cause: str
    seeds: tuple[int, ...]


class Diverged(Refusal):
    """Runs diverged with seeds (and all else) with which the baseline did not."""

    cause: str
    seeds: tuple[int, ...]
    other_seeds: tuple[int, ...]
    """Those that diverged for another cause."""

    @property
    def sentence(self) -> str:
        others = f"; diverged otherwise in {seeds_text(self.other_seeds)}" if self.other_seeds else ""
        return f"{self.cause or 'diverged'} in {seeds_text(self.seeds)}{others}"


class MostlyFailing(Refusal):
    """More than half of the arm's runs ended in one way, without figures."""

    outcome: str
    cause: str
    num_such: int
    num_runs: int

    @property
    def sentence(self) -> str:
        outcome = "out of memory" if self.outcome == "oom" else self.outcome
        why = f" ({self.cause})" if self.cause and self.outcome != "oom" else ""
        return f"{outcome} in {self.num_such} of {plural(self.num_runs, 'run')}{why}"


class Emulated(Refusal):
    template = "emulated, hence without speed and memory: {cause}"

    cause: str


class Worse(Refusal):
    trains = True

    parity: Parity

    @property
    def sentence(self) -> str:
        return f"{metric_words(self.parity.metric)} is worse: {self.parity.grounds}"


class OverMemory(Refusal):
    trains = True
    template = "needs {peak_bytes:bytes} at its peak, more than the {limit_bytes:bytes} given"

    peak_bytes: float
    limit_bytes: float


class Missing(Finding):
    """The first thing that is missing to judge an arm by."""

    remedy: ClassVar[str]

    arm: str

    @property
    def next_step(self) -> str:
        return self.filled(self.remedy)


class TooFewPairs(Missing):
    severity = "warning"

    baseline: str
    unsupported: bool
    num_completed: int
    num_expected: int
    failures: dict[str, int]
    """Runs of the arm that give no complete pair, by outcome."""
    baseline_failures: dict[str, int]
    num_without_partner: int
    """Completed runs without a baseline run to pair with."""

    @property
    def sentence(self) -> str:
        if self.unsupported:
            return _UNSUPPORTED
        causes = self._causes
        done = f"{self.num_completed} of {plural(self.num_expected, 'pair')} completed"
        why = f"{done} ({', '.join(causes)})" if causes else done
        return f"{why} and {MIN_PAIRS} are needed" if self.num_expected < MIN_PAIRS else why

    @property
    def next_step(self) -> str:
        if "cut short" in self.failures:
            return f"let {self.arm} take all of its steps (fewer trainer.steps, or more trainer.max_seconds)"
        missing = plural(MIN_PAIRS - self.num_completed, "more pair")
        return f"complete {missing} of {self.arm} with the baseline"

    @property
    def _causes(self) -> list[str]:
        failures = [f"{count} {status}" for status, count in self.failures.items()]
        failures += [f"{count} {self.baseline} {status}" for status, count in self.baseline_failures.items()]
        if failures:
            return failures
        if self.num_without_partner:
            return [f"{self.num_without_partner} without a {self.baseline} run to pair with"]
        missing = self.num_expected - self.num_completed
        return [f"{missing} not run"] if missing > 0 else []


class SpeedNotKnown(Missing):
    template = "its speed is not known well enough: {speed}"
    remedy = "time {arm} again with more seeds, on an idle machine"

    speed: str


class EnergyNotKnown(Missing):
    template = "its energy is not known well enough"
    remedy = "run more seeds of {arm}, on an idle device"


class NoFinalLoss(Missing):
    template = "no validation loss was recorded"
    remedy = "use data with a validation part, so that there is a final loss to compare"


class ParityOpen(Missing):
    unsettled: tuple[Parity, ...]

    @property
    def sentence(self) -> str:
        return "; ".join(
            f"its {metric_words(one.metric)} may be worse by more than the margin ({one.grounds})"
            for one in self.unsettled
        )

    @property
    def next_step(self) -> str:
        known = [one.further_seeds for one in self.unsettled if one.further_seeds is not None]
        if len(known) == len(self.unsettled):
            return f"run about {plural(max(known), 'more seed')} of {self.arm} and the baseline"
        margin = f"for the next runs accept a wider report.margin_pct than {self.unsettled[0].margin_pct:g}"
        return f"train longer, or {margin} (more than {MAX_FURTHER_PAIRS} more seeds would be needed)"


class SmallWorkload(Missing):
    template = TOO_SMALL
    remedy = LARGER


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The verdict on an arm other than the baseline, with all that a recommendation looks at."""

    arm: str
    too_few_pairs: TooFewPairs | None
    """The reason why nothing is concluded about it."""
    judgements: Judgements
    waterfall: Waterfall | None
    time_to_loss: TimeToLoss | None
    refusal: Refusal | None = field(repr=False)
    pairs: tuple[Pair, ...] = field(repr=False)

    @property
    def conclusion(self) -> str:
        """The findings on the arm, or why nothing is concluded about it, in a clause."""
        if self.too_few_pairs is None:
            return self.judgements.summary
        so_far = f", {self.judgements.speed_text}" if self.judgements.is_timed else ""
        return self.too_few_pairs.sentence + so_far

    @property
    def n(self) -> str:
        return f" (n={self.judgements.figures.num_completed_pairs})"

    @property
    def is_judged(self) -> bool:
        return self.refusal is None and self.too_few_pairs is None

    @property
    def open_parity(self) -> Missing | None:
        if self.judgements.parity == "not measured":
            return NoFinalLoss(arm=self.arm)
        unsettled = tuple(one for one in self.judgements.parities if not one.not_worse)
        return ParityOpen(arm=self.arm, unsettled=unsettled) if unsettled else None

    def cost(self, kind: CostKind) -> Cost:
        return cost_of(kind, self.pairs, self.time_to_loss)

    def open(self, ranking: Ranking) -> Missing | None:
        if self.too_few_pairs is not None:
            return self.too_few_pairs
        cost = self.cost(ranking.cost)
        if cost.is_known or cost.is_more:
            return self.open_parity
        missing: Missing = EnergyNotKnown(arm=self.arm)
        if ranking.objective == "time":
            missing = SpeedNotKnown(arm=self.arm, speed=self.judgements.speed_text)
        return (self.open_parity or missing) if ranking.is_to_loss else missing


def too_few_pairs(arm: ArmComparison, baseline: ArmComparison) -> TooFewPairs | None:
    if arm.num_completed_pairs >= MIN_PAIRS:
        return None
    return TooFewPairs(
        arm=arm.arm,
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
    """Find the first reason to refuse the arm of `runs`, in the order of the classes above."""
    return next(_refusals(runs, baseline_runs, parities), None) or over_memory(runs, goal)


def _refusals(runs: Sequence[Run], baseline_runs: Sequence[Run], parities: Sequence[Parity]) -> Iterator[Refusal]:
    if all(run.outcome == "unsupported" for run in runs):
        yield Unsupported(cause=_error(runs[0]))
    if (before := arm_before(runs[0].arm)) is not None:
        yield OtherArmBefore(saved_in=before)
    if disproved := [run for run in runs if run.contradictions]:
        yield ContradictsMode(cause="; ".join(disproved[0].contradictions), seeds=_seeds(disproved))
    # If the baseline diverges too, the learning rate or the data is to blame.
    baseline_too = {run.record.pair_key for run in baseline_runs if run.outcome == "diverged"}
    if alone := [run for run in runs if run.outcome == "diverged" and run.record.pair_key not in baseline_too]:
        so = [run for run in alone if run.record.error == alone[0].record.error]
        others = [run for run in alone if run.record.error != alone[0].record.error]
        yield Diverged(cause=_error(alone[0]), seeds=_seeds(so), other_seeds=_seeds(others))
    yield from _mostly(runs, "oom", "failed")
    emulated = [run.emulated for run in runs if run.measured]
    if emulated and all(emulated):
        yield Emulated(cause=emulated[0] or "")
    yield from (Worse(parity=one) for one in parities if one.verdict == "worse")


def baseline_refusal(runs: Sequence[Run]) -> Refusal | None:
    """The reason why the baseline's runs are nothing to compare with."""
    if all(run.outcome == "unsupported" for run in runs):
        return Unsupported(cause=_error(runs[0]))
    return next(_mostly(runs, "disproved", "diverged", "oom", "failed"), None)


def over_memory(runs: Sequence[Run], goal: Goal) -> Refusal | None:
    limit = goal.memory_bytes
    peaks = [peak for run in runs if run.measured and (peak := run.num_bytes(PEAK_MEMORY)) is not None]
    if limit is None or not peaks or max(peaks) <= limit:
        return None
    return OverMemory(peak_bytes=max(peaks), limit_bytes=limit)


def _failures(arm: ArmComparison) -> dict[str, int]:
    return {status: count for status, count in arm.statuses.items() if status in _WITHOUT_FIGURES}


def _mostly(runs: Sequence[Run], *outcomes: str) -> Iterator[Refusal]:
    for outcome in outcomes:
        found = [run for run in runs if run.outcome == outcome]
        if 2 * len(found) > len(runs):
            yield MostlyFailing(outcome=outcome, cause=_error(found[0]), num_such=len(found), num_runs=len(runs))


def _error(run: Run) -> str:
    return first_line(run.record.error or "")


def _seeds(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in runs}))
