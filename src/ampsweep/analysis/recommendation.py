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
from ampsweep.analysis.candidates import Candidate, Missing, Refusal, SpeedDisturbed, is_known
from ampsweep.analysis.statistics import Values, ratio_between
from ampsweep.finding import Finding
from ampsweep.text import GIB

Standing = Literal["recommended", "eligible", "undecided", "refused"]

MIN_DIFFERENCE: Final = 0.02  # of speed or memory, to decide anything: a new driver or library changes as much


class Undecided(Finding):
    remedy: ClassVar[str]
    baseline: str


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


class NothingFits(Undecided):
    template = "no arm that could be recommended fits into the {limit_bytes:bytes} given"
    remedy = "allow more memory (report.memory_gib), or compare modes that need less"
    limit_bytes: float


class Rivals(Undecided):
    template = "whether {arms:joined} may be better is open"
    leader: str | None
    missing: tuple[Missing, ...]  # of one arm after another

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(missing.arm for missing in self.missing))

    @property
    def num_seeds(self) -> int:
        """Further seeds; an arm's undisturbed speed comes first, as it may be enough."""
        first = {of.arm for of in self.missing if isinstance(of, SpeedDisturbed)}
        return max(of.num_seeds for of in self.missing if of.arm not in first or isinstance(of, SpeedDisturbed))


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    baseline: str
    arm: str | None  # None if it is `undecided`
    undecided: Undecided | None
    baseline_refusal: Refusal | None = None
    memory_gib: float | None = field(default=None, repr=False)

    def standing(self, arm: Candidate | None) -> Standing:
        """That of a candidate; None: of the baseline."""
        if (self.baseline_refusal if arm is None else arm.refusal) is not None:
            return "refused"
        if self.arm == (self.baseline if arm is None else arm.arm):
            return "recommended"
        return "undecided" if arm is not None and arm.missing else "eligible"


def recommend(
    baseline: ArmComparison,
    candidates: Sequence[Candidate],
    step_ms: Mapping[str, Values],
    *,
    baseline_refusal: Refusal | None,
    memory_gib: float | None,
) -> Recommendation:
    """Apply the rule above to a workload, given `candidates` in the order of tables, step times in milliseconds by arm
    and pair key, and why the baseline would be refused if it were another arm."""
    chosen: ArmComparison | None = None
    undecided: Undecided | None = None
    missing = {candidate.arm: what for candidate in candidates if (what := candidate.missing)}
    if baseline_refusal is not None and not baseline_refusal.trains:
        undecided = BaselineRefused(baseline=baseline.arm, refusal=baseline_refusal)
    elif not candidates:
        undecided = NoOtherArms(baseline=baseline.arm)
    else:
        in_question = [candidate.judgements.figures for candidate in candidates if candidate.refusal is None]
        options = [] if baseline_refusal else [baseline]
        options += [arm for arm in in_question if arm.arm not in missing]
        chosen = _choose(options, step_ms) if options else None
        waiting = [arm for arm in in_question if arm.arm in missing]
        rivals = [what for arm in waiting if _might_be_chosen(arm, chosen, step_ms) for what in missing[arm.arm]]
        if rivals:
            leader = None if chosen is None else chosen.arm
            undecided = Rivals(baseline=baseline.arm, leader=leader, missing=tuple(rivals))
        elif chosen is None:
            undecided = NothingFits(baseline=baseline.arm, limit_bytes=(memory_gib or 0.0) * GIB)
    arm = chosen.arm if chosen is not None and undecided is None else None
    return Recommendation(
        baseline=baseline.arm,
        arm=arm,
        undecided=undecided,
        baseline_refusal=baseline_refusal,
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
    if arm.disturbed_step_ms is not None or arm.speedup is None or not (arm.speedup.interval or arm.speedup.exact):
        return chosen.is_baseline
    if not is_known(arm.speedup):
        return (arm.speedup.high or arm.speedup.value) > (1 + MIN_DIFFERENCE) * _speedup(chosen)
    return _choose([chosen, arm], step_ms) is arm
