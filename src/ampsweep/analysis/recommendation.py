"""The recommendation of an arm to train in, or the facts that are missing to decide on one.

1. Arms are refused for the reasons of `candidates.refusal`. The baseline may need more than the memory given: it is not
   recommended then, and the others are compared with it all the same.
2. An arm is undecided with fewer than three completed pairs, while its step time is neither resolved from the
   baseline's nor within 10% of it, or while a final metric may be worse by more than the margin. The others are
   eligible.
3. Of the eligible arms, those that the fastest does not beat by 2%, resolved by their pairs, count as no slower. Of
   these the one with the smallest peak memory is chosen, or the nearest to the baseline that needs at most 2% more.
4. It is recommended unless an undecided arm might be chosen in its place. Nothing is recommended of a workload too
   small to judge speed by.

Intervals are those of single arms: nothing is corrected for how many arms are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import LARGER, Candidate, Missing, OverMemory, Refusal, SmallWorkload, is_known
from ampsweep.analysis.statistics import Values, ratio_between
from ampsweep.analysis.step_limits import TOO_SMALL, SmallStep
from ampsweep.finding import Finding
from ampsweep.text import GIB

Standing = Literal["recommended", "eligible", "undecided", "refused"]

MIN_DIFFERENCE: Final = 0.02
"""Smaller differences of speed or memory decide nothing: a change of driver or library makes as large ones."""


class Undecided(Finding):
    """The reason why no arm can be recommended yet."""

    remedy: ClassVar[str]

    baseline: str

    @property
    def next_steps(self) -> tuple[str, ...]:
        return (self.filled(self.remedy),)


class NoBaseline(Undecided):
    template = "there is no {baseline} run to compare with"
    remedy = "run {baseline}, or compare with another arm (report.baseline)"


class BaselineRefused(Undecided):
    template = "{baseline}, which all is compared with, is refused: {refusal.sentence}"
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
    """Undecided arms may be better than the one that would be recommended but for them."""

    leader: str | None
    missing: tuple[Missing, ...]

    @property
    def sentence(self) -> str:
        first, may_be = self.missing[0], "the one" if self.leader is None else f"better than {self.leader}"
        return f"{first.arm} may be {may_be}, but {first.sentence}"

    @property
    def next_steps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.next_step for one in self.missing))


@dataclass(frozen=True, kw_only=True)
class ArmStanding:
    """The outcome of the rule for an arm or the baseline."""

    arm: str
    standing: Standing
    reason: str
    """The sentence of the refusal or of what is missing, else the arm's judgements in words."""
    refusal: Refusal | None = None
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The `arm` to train in, or the reason (`undecided`) why that is not decidable yet; one of the two is None."""

    baseline: str
    arm: str | None
    undecided: Undecided | None
    standings: tuple[ArmStanding, ...] = ()
    """The baseline's first; none where it did not run."""
    memory_gib: float | None = field(default=None, repr=False)
    """The memory given."""


def recommend(
    baseline: ArmComparison,
    candidates: Sequence[Candidate],
    step_ms: Mapping[str, Values],
    *,
    baseline_refusal: Refusal | None,
    small_step: SmallStep | None,
    memory_gib: float | None,
) -> Recommendation:
    """Apply the rule above to one workload.

    Args:
        baseline: the arm the others are compared with.
        candidates: the other arms, in the order of tables.
        step_ms: each arm's own step times by pair key, in milliseconds.
        baseline_refusal: why the baseline would be refused if it were another arm.
        small_step: the sign that the figures of the workload do not tell about speed.
        memory_gib: the memory given; None: what the device held.
    """
    chosen: _Option | None = None
    undecided: Undecided | None = None
    missing = {one.arm: what for one in candidates if (what := one.missing) is not None}
    if baseline_refusal is not None and not isinstance(baseline_refusal, OverMemory):
        undecided = BaselineRefused(baseline=baseline.arm, refusal=baseline_refusal)
    elif not candidates:
        undecided = NoOtherArms(baseline=baseline.arm)
    elif small_step is not None:
        undecided = StepTooSmall(baseline=baseline.arm, small_step=small_step)
    else:
        in_question = [one for one in candidates if one.refusal is None]
        eligible = [one for one in in_question if one.arm not in missing]
        options = [option for one in eligible if (option := _option(one, step_ms)) is not None]
        if baseline_refusal is None:
            options.insert(0, _Option(baseline.arm, True, 1.0, step_ms[baseline.arm], baseline.peak_memory_bytes))
        chosen = _choose(options) if options else None
        rivals = [one.arm for one in in_question if one.arm in missing and _might_be_chosen(one, chosen, step_ms)]
        if rivals:
            leader = None if chosen is None else chosen.arm
            undecided = Rivals(baseline=baseline.arm, leader=leader, missing=tuple(missing[arm] for arm in rivals))
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
        standings=(reference, *(_standing(one, arm, small_step, missing.get(one.arm)) for one in candidates)),
        memory_gib=memory_gib,
    )


@dataclass(frozen=True)
class _Option:
    """An arm that may be chosen."""

    arm: str
    is_baseline: bool
    speedup: float
    step_ms: Values
    peak_bytes: float | None


def _option(one: Candidate, step_ms: Mapping[str, Values]) -> _Option | None:
    figures = one.judgements.figures
    if figures.speedup is None:
        return None
    return _Option(one.arm, False, figures.speedup.value, step_ms[one.arm], figures.peak_memory_bytes)


def _choose(options: Sequence[_Option]) -> _Option:
    """Part 3 of the rule."""
    best = max(options, key=lambda one: one.speedup)
    as_good = [one for one in options if one is best or not _beats(best, one)]
    known = [one.peak_bytes for one in as_good if one.peak_bytes is not None]
    if len(known) < len(as_good):
        return as_good[0]
    enough = (1 + MIN_DIFFERENCE) * min(known)
    return next(one for one, peak in zip(as_good, known, strict=True) if peak <= enough)


def _beats(one: _Option, other: _Option) -> bool:
    ratio = ratio_between(other.step_ms, one.step_ms)
    return ratio is not None and ratio.value >= 1 + MIN_DIFFERENCE and ratio.resolves(1.0)


def _might_be_chosen(one: Candidate, chosen: _Option | None, step_ms: Mapping[str, Values]) -> bool:
    """Return True if an undecided arm might take the place of the chosen one, by its facts so far."""
    if chosen is None:
        return True
    speedup, option = one.judgements.figures.speedup, _option(one, step_ms)
    if speedup is None or option is None or not (speedup.interval or speedup.exact):
        return chosen.is_baseline
    if not is_known(speedup):
        return (speedup.high or speedup.value) > (1 + MIN_DIFFERENCE) * chosen.speedup
    return _choose([chosen, option]) is option


def _standing(
    one: Candidate, recommended: str | None, small_step: SmallStep | None, missing: Missing | None
) -> ArmStanding:
    if one.refusal is not None:
        return ArmStanding(arm=one.arm, standing="refused", reason=one.refusal.sentence, refusal=one.refusal)
    if missing is None and small_step is not None:
        missing = SmallWorkload(arm=one.arm)
    if missing is not None:
        return ArmStanding(arm=one.arm, standing="undecided", reason=missing.sentence, missing=missing)
    standing: Standing = "recommended" if one.arm == recommended else "eligible"
    return ArmStanding(arm=one.arm, standing=standing, reason=one.judgements.summary + one.n)
