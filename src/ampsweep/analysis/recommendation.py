"""Which precision to train in: one arm, or what would decide it.

The rule:
1. An arm is refused for what `refusals` lists.
2. An arm is undecided while it has fewer than three completed pairs, while its speed is neither told from the
   baseline's nor known to be within 10% of it, or while a final metric may still be worse than the baseline's by more
   than the margin. All others are eligible, and so is the baseline.
3. Of several arms the fastest is found, and those that it does not beat by 2% in a way that their pairs resolve (the
   95% interval of their own ratio leaves out 1) count as equally fast. Of these the one with the smallest peak memory
   is chosen, or where others need at most 2% more, the nearest of them to the baseline.
4. The eligible arm so chosen is recommended, unless an undecided arm might be chosen in its place: then nothing is
   decidable yet, and what would decide is said.
5. Of a workload too small to judge speed by, nothing is recommended.

Intervals are those of single arms: nothing is corrected for how many arms are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import STEP_MS, ArmComparison
from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.statistics import mean_ratio

Standing = Literal["recommended", "eligible", "undecided", "refused"]

MIN_DIFFERENCE: Final = 0.02
"""Smaller differences of speed or memory decide nothing: a change of driver or library makes as large ones."""

_TOO_SMALL: Final = "the workload is too small to judge speed by"


@dataclass(frozen=True, kw_only=True)
class ArmStanding:
    """How an arm, the baseline among them, came out of the rule, and why."""

    arm: str
    standing: Standing
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """`arm` to train in; None while that is not decidable."""

    arm: str | None
    sentence: str
    evidence: tuple[str, ...]
    """Speed, memory and parity of the arm; of all that are not refused where none, or the baseline, is recommended."""
    standings: tuple[ArmStanding, ...]
    to_decide: tuple[str, ...]
    """What would decide it; empty where it is decided."""

    @classmethod
    def without(cls, baseline: str) -> "Recommendation":
        """Where the arm `baseline` did not run."""
        what = f"run {baseline}, or compare with another arm (report.baseline)"
        sentence = f"Not decidable yet: there is no {baseline} run to compare with; {what}."
        return cls(arm=None, sentence=sentence, evidence=(), standings=(), to_decide=(what,))


@dataclass(frozen=True)
class Question:
    """What is known of a workload when a recommendation is asked for."""

    baseline: ArmComparison
    candidates: tuple[Candidate, ...]
    """The other arms, in the order of tables."""
    baseline_refusal: str | None
    """Why the baseline would be refused if it were another arm."""
    too_small: str | None
    """Why its figures do not tell about speed; None if they do."""


def recommend(question: Question) -> Recommendation:
    """Apply the rule above to one question."""
    baseline = question.baseline
    if question.baseline_refusal is not None:
        reason = f"{baseline.arm}, which all is compared with, is refused: {question.baseline_refusal}"
        return _undecided(question, reason, ("compare with another arm (report.baseline)",))
    if not question.candidates:
        return _undecided(question, f"there is no arm besides {baseline.arm}", ("run other precision modes",))
    if question.too_small is not None:
        return _undecided(question, _TOO_SMALL, ("compare on a larger model, batch or sequence",))
    chosen = _choose(baseline, [one for one in question.candidates if _is_eligible(one)])
    rivals = [one for one in question.candidates if _is_open(one) and _might_be_chosen(one, chosen, baseline)]
    if not rivals:
        return _decided(question, chosen)
    missing = [one.open_question for one in rivals if one.open_question is not None]
    reason = f"{rivals[0].arm} may be better than {chosen.arm if chosen else baseline.arm}, but {missing[0].reason}"
    return _undecided(question, reason, tuple(dict.fromkeys(one.what for one in missing)))


def _is_eligible(one: Candidate) -> bool:
    return one.refusal is None and one.open_question is None


def _is_open(one: Candidate) -> bool:
    return one.refusal is None and one.open_question is not None


def _choose(baseline: ArmComparison, candidates: Sequence[Candidate]) -> Candidate | None:
    """Part 3 of the rule; None is the baseline."""
    options: list[Candidate | None] = [None, *candidates]
    fastest = max(options, key=lambda one: 1.0 if one is None or not one.figures.speedup else one.figures.speedup.value)
    fast = [one for one in options if one is fastest or not _beats(fastest, one)]
    peaks = [(baseline if one is None else one.figures).peak_memory_bytes for one in fast]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return fast[0]
    enough = (1 + MIN_DIFFERENCE) * min(known)
    return next(one for one, peak in zip(fast, known, strict=True) if peak <= enough)


def _beats(one: Candidate | None, other: Candidate | None) -> bool:
    """Whether `one` is faster by enough, in the pairs that both have with the baseline (None)."""
    mine, theirs = _speedups(one), _speedups(other)
    keys = [key for key in mine or theirs if (not mine or key in mine) and (not theirs or key in theirs)]
    if not keys:
        return False
    ratio = mean_ratio([(mine.get(key, 1.0), theirs.get(key, 1.0)) for key in keys])
    return ratio.value >= 1 + MIN_DIFFERENCE and ratio.resolves(1.0)


def _speedups(one: Candidate | None) -> Mapping[str, float]:
    """Speedup over the baseline by pair key; empty for the baseline itself."""
    figures = {pair.pair_key: pair.speed_figures(STEP_MS) for pair in (one.pairs if one else ())}
    return {key: both[0] / both[1] for key, both in figures.items() if both is not None and min(both) > 0}


def _might_be_chosen(one: Candidate, chosen: Candidate | None, baseline: ArmComparison) -> bool:
    """Whether an undecided arm might take the place of the one chosen, by what is known of it so far."""
    speedup = one.figures.speedup
    if speedup is None or not (speedup.interval or speedup.exact):
        return chosen is None
    if not one.speed_is_known:
        best = chosen.figures.speedup if chosen else None
        return (speedup.high or speedup.value) > (1 + MIN_DIFFERENCE) * (best.value if best else 1.0)
    return _choose(baseline, [one] if chosen is None else [chosen, one]) is one


def _decided(question: Question, chosen: Candidate | None) -> Recommendation:
    baseline = question.baseline.arm
    if chosen is not None:
        sentence = f"Train in {chosen.arm}: against {baseline}, {chosen.judgements.brief}{_n(chosen)}."
        return _recommendation(question, chosen.arm, sentence, chosen.judgements.lines)
    judged = _judged(question)
    others = [f"{one.arm} has {one.judgements.brief}{_n(one)}" for one in judged]
    evidence = tuple(f"{one.arm}: {line}" for one in judged for line in one.judgements.lines)
    why = "; ".join(others) or "every other arm is refused, or short of three completed pairs"
    sentence = f"Stay with {baseline}: {why}."
    return _recommendation(question, baseline, sentence, evidence)


def _undecided(question: Question, reason: str, what: tuple[str, ...]) -> Recommendation:
    first = 0 if question.too_small is None else 1  # the lines begin with speed
    known = [f"{one.arm}: {line}" for one in _judged(question) for line in one.judgements.lines[first:]]
    evidence = tuple(known if question.too_small is None else [question.too_small, *known])
    return _recommendation(question, None, f"Not decidable yet: {reason}; {what[0]}.", evidence, what)


def _judged(question: Question) -> list[Candidate]:
    return [one for one in question.candidates if one.refusal is None and one.withheld is None]


def _n(one: Candidate) -> str:
    return f" (n={one.figures.num_completed_pairs})"


def _recommendation(
    question: Question, arm: str | None, sentence: str, evidence: tuple[str, ...], to_decide: tuple[str, ...] = ()
) -> Recommendation:
    reason = question.baseline_refusal
    baseline = ArmStanding(
        arm=question.baseline.arm,
        standing="refused" if reason else "recommended" if arm == question.baseline.arm else "eligible",
        reason=reason or "what the others are compared with",
    )
    standings = (baseline, *(_standing(one, arm, question.too_small) for one in question.candidates))
    return Recommendation(arm=arm, sentence=sentence, evidence=evidence, standings=standings, to_decide=to_decide)


def _standing(one: Candidate, recommended: str | None, too_small: str | None) -> ArmStanding:
    if one.refusal is not None:
        return ArmStanding(arm=one.arm, standing="refused", reason=one.refusal)
    if one.open_question is not None:
        return ArmStanding(arm=one.arm, standing="undecided", reason=one.open_question.reason)
    if too_small is not None:
        return ArmStanding(arm=one.arm, standing="undecided", reason=_TOO_SMALL)
    standing: Standing = "recommended" if one.arm == recommended else "eligible"
    return ArmStanding(arm=one.arm, standing=standing, reason=f"{one.judgements.summary}{_n(one)}")
