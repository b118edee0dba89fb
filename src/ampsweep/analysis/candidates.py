"""The arms as candidates to train in: refused, undecided or eligible."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final

from scipy.special import stdtrit

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.figure_keys import PEAK_MEMORY
from ampsweep.analysis.judgements import Judgements, Parity
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.run_findings import cannot_run, disturbed
from ampsweep.analysis.runs import Run, metric_words
from ampsweep.analysis.statistics import CONFIDENCE, MAX_FURTHER_PAIRS, MIN_PAIRS, Estimate
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.analysis.waterfall import Waterfall
from ampsweep.config.modes import arm_before
from ampsweep.finding import Finding
from ampsweep.text import GIB, first_line, plural

MAX_DOUBT: Final = 1.1  # factor within which unresolved step times must be known to lie


class Refusal(Finding):
    severity = "fault"
    trains: ClassVar[bool] = False  # True if the arm trains nevertheless, so that it has a place on the front


class Unsupported(Refusal):
    template = "unsupported on this device"


class OtherArmBefore(Refusal):
    template = "its first steps were in {saved_in}: its speed and memory are those of the rest alone"
    saved_in: str


class ContradictsMode(Refusal):
    template = "{cause} in {seeds:seeds}"
    cause: str
    seeds: tuple[int, ...]


class Diverged(Refusal):  # where the baseline with the same pair key did not
    template = "{cause} in {seeds:seeds}"
    cause: str  # the error of the first run
    seeds: tuple[int, ...]


class MostlyFailing(Refusal):
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
    """What keeps an arm from being judged, and what would probably change that."""

    remedy: ClassVar[str] = ""  # where neither more seeds nor longer trainings would
    arm: str
    num_seeds: int = 0  # further seeds; 0 where those do not help
    needs_longer: bool = False


class TooFewPairs(Missing):
    severity = "warning"
    remedy = "let {arm} take all of its steps (fewer trainer.steps, or more trainer.max_seconds)"
    num_completed: int
    num_expected: int
    failures: dict[str, int]  # runs without a complete pair, by outcome

    @property
    def sentence(self) -> str:
        causes = ", ".join(f"{count} {outcome}" for outcome, count in self.failures.items())
        done = f"{self.num_completed} of {plural(self.num_expected, 'pair')} completed"
        why = f"{done} ({causes})" if causes else done
        return f"{why}, {MIN_PAIRS} are needed" if self.num_expected < MIN_PAIRS else why


class SpeedNotKnown(Missing):
    template = "its speed is not known well enough"


class SpeedNotMeasured(Missing):
    template = "its speed was not measured"
    remedy = "time {arm} without what slowed it down (trainer.memory_limit_gib watches every operator)"


class SpeedDisturbed(Missing):
    template = "its speed is not judged, since {cause}"
    cause: str


class NoFinalLoss(Missing):
    template = "no {metric} was recorded"
    metric: str
    remedy = "use data with a validation part, or another report.metric, so that there is a final value to compare"


class ParityOpen(Missing):
    template = "whether it learns as well is open"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    arm: str
    too_few_pairs: TooFewPairs | None
    judgements: Judgements
    waterfall: Waterfall | None
    time_to_loss: TimeToLoss | None
    refusal: Refusal | None
    pairs: tuple[Pair, ...] = field(repr=False)

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """What keeps it from being judged: of learning, and of speed."""
        speed, first = self._missing_speed, self.too_few_pairs or self._missing_parity
        if self.too_few_pairs is not None and not isinstance(speed, SpeedDisturbed):
            speed = None  # it will be known with them
        return tuple(missing for missing in (first, speed) if missing is not None)

    @property
    def _missing_speed(self) -> Missing | None:
        of = self.judgements.figures
        seen = disturbed(run for pair in self.pairs for run in (*pair.baseline_runs, *pair.arm_runs))
        if of.disturbed_step_ms is not None and seen is not None:
            num_clean = 0 if of.speedup is None else of.speedup.n
            return SpeedDisturbed(arm=self.arm, cause=seen.causes[0], num_seeds=MIN_PAIRS - num_clean)
        if of.speedup is None:
            return SpeedNotMeasured(arm=self.arm, needs_longer=seen is None)
        if is_known(of.speedup):
            return None
        return SpeedNotKnown(arm=self.arm, num_seeds=_pairs_to_know(of.speedup))

    @property
    def _missing_parity(self) -> Missing | None:
        if self.judgements.parity == "not measured":
            return NoFinalLoss(arm=self.arm, metric=self.judgements.figures.keys.named("validation loss"))
        needed = [parity.further_seeds for parity in self.judgements.parities if not parity.not_worse]
        known = [seeds for seeds in needed if seeds is not None]
        is_hopeless = len(known) < len(needed)  # more than a hundred
        num_seeds = 0 if is_hopeless else max(known, default=0)
        return ParityOpen(arm=self.arm, num_seeds=num_seeds, needs_longer=is_hopeless) if needed else None


def is_known(speedup: Estimate) -> bool:
    """Return True if a step time is resolved from the baseline's, or known to be about the same."""
    if speedup.exact or speedup.resolves(1.0):
        return True
    return speedup.interval is not None and speedup.interval[0] >= 1 / MAX_DOUBT and speedup.interval[1] <= MAX_DOUBT


def _pairs_to_know(speedup: Estimate) -> int:
    """Pairs to add until a speed is known (`is_known`), if mean and spread stay as they are; at most a hundred."""
    if speedup.interval is None:
        return max(MIN_PAIRS - speedup.n, 1)
    mean, half_width = abs(math.log(speedup.value)), math.log(speedup.interval[1] / speedup.value)
    share = 0.5 + CONFIDENCE / 2
    scale = half_width * math.sqrt(speedup.n) / stdtrit(speedup.n - 1, share)
    for further in range(1, MAX_FURTHER_PAIRS):
        n = speedup.n + further
        width = scale * stdtrit(n - 1, share) / math.sqrt(n)
        if width < mean or mean + width < math.log(MAX_DOUBT):
            return further
    return MAX_FURTHER_PAIRS


def too_few_pairs(arm: ArmComparison) -> TooFewPairs | None:
    if arm.num_completed_pairs >= MIN_PAIRS:
        return None
    return TooFewPairs(
        arm=arm.arm,
        num_seeds=0 if "cut short" in arm.statuses else MIN_PAIRS - arm.num_completed_pairs,
        num_completed=arm.num_completed_pairs,
        num_expected=arm.num_expected_pairs,
        failures={status: count for status, count in arm.statuses.items() if status != "completed"},
    )


def refusals(
    runs: Sequence[Run], baseline_runs: Sequence[Run], parities: Sequence[Parity], memory_gib: float | None
) -> Iterator[Refusal]:
    """Yield the reasons to refuse the arm of `runs`, in the order of the classes above."""
    if cannot_run(run.outcome for run in runs):
        yield Unsupported()
    if (before := arm_before(runs[0].arm)) is not None:
        yield OtherArmBefore(saved_in=before)
    if disproved := [run for run in runs if run.contradictions]:
        yield ContradictsMode(cause="; ".join(disproved[0].contradictions), seeds=_seeds(disproved))
    # If the baseline diverges too, the learning rate or the data is to blame.
    baseline_too = {run.recorded_key for run in baseline_runs if run.outcome == "diverged"}
    if alone := [run for run in runs if run.outcome == "diverged" and run.recorded_key not in baseline_too]:
        yield Diverged(cause=first_line(alone[0].record.error or "diverged"), seeds=_seeds(alone))
    yield from _mostly(runs, "oom", "failed")
    emulated = [run.emulated for run in runs if run.measured]
    if emulated and all(emulated):
        yield Emulated(cause=emulated[0] or "")
    yield from (Worse(parity=parity) for parity in parities if parity.verdict == "worse")
    yield from _over_memory(runs, memory_gib)


def baseline_refusals(runs: Sequence[Run], memory_gib: float | None) -> Iterator[Refusal]:
    yield from _mostly(runs, "unsupported", "disproved", "diverged", "oom", "failed")
    yield from _over_memory(runs, memory_gib)


def _over_memory(runs: Sequence[Run], memory_gib: float | None) -> Iterator[OverMemory]:
    peaks = [peak for run in runs if run.measured and (peak := run.num_bytes(PEAK_MEMORY)) is not None]
    if memory_gib is not None and max(peaks, default=0.0) > memory_gib * GIB:
        yield OverMemory(peak_bytes=max(peaks), limit_bytes=memory_gib * GIB)


def _mostly(runs: Sequence[Run], *outcomes: str) -> Iterator[Refusal]:
    for outcome in outcomes:
        found = [run for run in runs if run.outcome == outcome]
        if 2 * len(found) > len(runs):
            cause = first_line(found[0].record.error or "")
            yield MostlyFailing(outcome=outcome, cause=cause, num_such=len(found), num_runs=len(runs))


def _seeds(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in runs}))
