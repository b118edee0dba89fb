"""The recommended arm, or what is missing to decide on it.

Arms are refused for the reasons of `candidates.refusal`, undecided for those of `Candidate.missing`, else eligible. Of
the eligible arms that the fastest does not beat by 2%, resolved by their pairs, the one with the smallest peak memory
wins, or the first in the order of tables that needs at most 2% more. Intervals are those of single arms, without
correction for the number of arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import LARGER, Candidate, Missing, Refusal, SmallWorkload, is_known
from ampsweep.analysis.statistics import Values, ratio_between
from ampsweep.analysis.step_limits import TOO_SMALL, SmallStep
from ampsweep.finding import Finding
from ampsweep.text import GIB

Standing = Literal["recommended", "eligible", "undecided", "refused"]

MIN_DIFFERENCE: Final = 0.02  # of speed or memory, to decide anything: a new driver or library changes as much


class Undecided(Finding):
    remedy: ClassVar[str]
    baseline: str

    @property
    def next_steps(self) -> tuple[str, ...]:
        return (self.filled(self.remedy),)


class NoBaseline(Undecided):
    template = "there is no {baseline} run to compare with"
    remedy = "run {baseline}, or compare with another arm (report.baseline)"


class BaselineRefused(Undecided):
    template = "the baseline {baseline} is refused: {refusal.sentence}"
    remedy = "compare with another arm (report.baseline)"
    refusal: Refusal


class NoOtherArms(Undecided):
    template = "there is no arm besides {baseline}"
    remedy = "run other precision modes"


class StepTooSmall(Undecided):
    template = TOO_SMALL
    remedy = LARGER
    small_step: SmallStep


class NothingFits(Undecided):
    template = "no arm that could be recommended fits into the {limit_bytes:bytes} given"
    remedy = "allow more memory (report.memory_gib), or compare modes that need less"
    limit_bytes: float


class Rivals(Undecided):
    leader: str | None
    missing: tuple[Missing, ...]

    @property
    def sentence(self) -> str:
        first, may_be = self.missing[0], "the one" if self.leader is None else f"better than {self.leader}"
        return f"{first.arm} may be {may_be}, but {first.sentence}"

    @property
    def next_steps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(missing.next_step for missing in self.missing))


@dataclass(frozen=True, kw_only=True)
class ArmStanding:
    arm: str
    standing: Standing
    reason: str  # the sentence of the refusal or of what is missing, else the arm's judgements
    refusal: Refusal | None = None
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    baseline: str
    arm: str | None  # None if it is `undecided`
    undecided: Undecided | None
    standings: tuple[ArmStanding, ...] = ()  # the baseline's first; empty without baseline runs
    memory_gib: float | None = field(default=None, repr=False)


def recommend(
    baseline: ArmComparison,
    candidates: Sequence[Candidate],
    step_ms: Mapping[str, Values],
    *,
    baseline_refusal: Refusal | None,
    small_step: SmallStep | None,
    memory_gib: float | None,
) -> Recommendation:
    """Apply the rule above to a workload, given `candidates` in the order of tables, step times in milliseconds by arm
    and pair key, and why the baseline would be refused if it were another arm."""
    chosen: ArmComparison | None = None
    undecided: Undecided | None = None
    missing = {candidate.arm: what for candidate in candidates if (what := candidate.missing) is not None}
    if baseline_refusal is not None and not baseline_refusal.trains:
        undecided = BaselineRefused(baseline=baseline.arm, refusal=baseline_refusal)
    elif not candidates:
        undecided = NoOtherArms(baseline=baseline.arm)
    elif small_step is not None:
        undecided = StepTooSmall(baseline=baseline.arm, small_step=small_step)
    else:
        in_question = [candidate.judgements.figures for candidate in candidates if candidate.refusal is None]
        options = [] if baseline_refusal else [baseline]
        options += [arm for arm in in_question if arm.arm not in missing]
        chosen = _choose(options, step_ms) if options else None
        waiting = [arm for arm in in_question if arm.arm in missing]
        rivals = [missing[arm.arm] for arm in waiting if _might_be_chosen(arm, chosen, step_ms)]
        if rivals:
            leader = None if chosen is None else chosen.arm
            undecided = Rivals(baseline=baseline.arm, leader=leader, missing=tuple(rivals))
        elif chosen is None:
            undecided = NothingFits(baseline=baseline.arm, limit_bytes=(memory_gib or 0.0) * GIB)
    arm = chosen.arm if chosen is not None and undecided is None else None
    reference = ArmStanding(
        arm=baseline.arm,
        standing="refused" if baseline_refusal else "recommended" if arm == baseline.arm else "eligible",
        reason=baseline_refusal.sentence if baseline_refusal else "what the others are compared with",
        refusal=baseline_refusal,
    )
    return Recommendation(
        baseline=baseline.arm,
        arm=arm,
        undecided=undecided,
        standings=(reference, *(_standing(other, arm, small_step, missing.get(other.arm)) for other in candidates)),
        memory_gib=memory_gib,
    )


def _speedup(of: ArmComparison) -> float:
    return 1.0 if of.speedup is None else of.speedup.value  # the baseline has none


def _choose(options: Sequence[ArmComparison], step_ms: Mapping[str, Values]) -> ArmComparison:
    best, as_good = max(options, key=_speedup), []
    for option in options:
        ratio = ratio_between(step_ms[option.arm], step_ms[best.arm])
        if option is best or ratio is None or ratio.value < 1 + MIN_DIFFERENCE or not ratio.resolves(1.0):
            as_good.append(option)
    known = [option.peak_memory_bytes for option in as_good if option.peak_memory_bytes is not None]
    if len(known) < len(as_good):
        return as_good[0]
    enough = (1 + MIN_DIFFERENCE) * min(known)
    return next(option for option, peak in zip(as_good, known, strict=True) if peak <= enough)


def _might_be_chosen(arm: ArmComparison, chosen: ArmComparison | None, step_ms: Mapping[str, Values]) -> bool:
    if chosen is None:
        return True
    if arm.speedup is None or not (arm.speedup.interval or arm.speedup.exact):
        return chosen.is_baseline
    if not is_known(arm.speedup):
        return (arm.speedup.high or arm.speedup.value) > (1 + MIN_DIFFERENCE) * _speedup(chosen)
    return _choose([chosen, arm], step_ms) is arm


def _standing(of: Candidate, chosen: str | None, small_step: SmallStep | None, missing: Missing | None) -> ArmStanding:
    if of.refusal is not None:
        return ArmStanding(arm=of.arm, standing="refused", reason=of.refusal.sentence, refusal=of.refusal)
    if missing is None and small_step is not None:
        missing = SmallWorkload(arm=of.arm)
    if missing is not None:
        return ArmStanding(arm=of.arm, standing="undecided", reason=missing.sentence, missing=missing)
    standing: Standing = "recommended" if of.arm == chosen else "eligible"
    return ArmStanding(arm=of.arm, standing=standing, reason=of.judgements.summary + of.n)
