"""The recommendation of an arm to train in, or the facts that are missing to decide on one.

The rule:
1. An arm is refused for the reasons that `candidates.refusal` lists.
2. An arm is undecided while it has fewer than three completed pairs, while its speed is neither resolved from the
   baseline's nor known to be within 10% of it, or while a final metric may still be worse than the baseline's by more
   than the margin. All others are eligible, and so is the baseline.
3. Of several arms the fastest is found, and those that it does not beat by 2% in a way that their pairs resolve (the
   95% interval of their own ratio leaves out 1) count as equally fast. Of these the one with the smallest peak memory
   is chosen, or where others need at most 2% more, the nearest of them to the baseline.
4. The eligible arm so chosen is recommended, unless an undecided arm might be chosen in its place: then nothing is
   decidable yet, and the steps that would decide it are given.
5. Of a workload too small to judge speed by, nothing is recommended.

Intervals are those of single arms: nothing is corrected for how many arms are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, OpenKind, Refusal
from ampsweep.analysis.runs import STEP_MS
from ampsweep.analysis.statistics import mean_ratio
from ampsweep.analysis.step_limits import SmallStep

Standing = Literal["recommended", "eligible", "undecided", "refused"]
UndecidedKind = Literal["no baseline run", "baseline refused", "no other arm", "too small", "rivals"]

MIN_DIFFERENCE: Final = 0.02
"""Smaller differences of speed or memory decide nothing: a change of driver or library makes as large ones."""


@dataclass(frozen=True, kw_only=True)
class ArmStanding:
    """The outcome of the rule for an arm, the baseline among them."""

    arm: str
    standing: Standing
    refusal: Refusal | None = None
    """Set for a refused arm."""
    open: OpenKind | None = None
    """The first thing missing, of an undecided arm."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The `arm` to train in, or the reason (`undecided`) why that is not decidable yet; one of the two is None."""

    baseline: str
    arm: str | None
    undecided: UndecidedKind | None
    leader: str | None = None
    """The arm that would be recommended but for `rivals`, which are undecided and may be better."""
    rivals: tuple[str, ...] = ()
    small_step: SmallStep | None = None
    """The sign that the workload is too small to judge speed by."""
    standings: tuple[ArmStanding, ...] = ()
    """The baseline's first; none where it did not run."""


def recommend(
    baseline: ArmComparison,
    candidates: Sequence[Candidate],
    *,
    baseline_refusal: Refusal | None,
    small_step: SmallStep | None,
) -> Recommendation:
    """Apply the rule above to one workload.

    Args:
        baseline: the arm the others are compared with.
        candidates: the other arms, in the order of tables.
        baseline_refusal: why the baseline would be refused if it were another arm.
        small_step: the sign that the figures of the workload do not tell about speed.
    """
    chosen: Candidate | None = None
    rivals: list[Candidate] = []
    undecided: UndecidedKind | None = None
    if baseline_refusal is not None:
        undecided = "baseline refused"
    elif not candidates:
        undecided = "no other arm"
    elif small_step is not None:
        undecided = "too small"
    else:
        chosen = _choose(baseline, [one for one in candidates if _is_eligible(one)])
        rivals = [one for one in candidates if _is_open(one) and _might_be_chosen(one, chosen, baseline)]
        undecided = "rivals" if rivals else None
    leader = chosen.arm if chosen else baseline.arm
    arm = leader if undecided is None else None
    reference = ArmStanding(
        arm=baseline.arm,
        standing="refused" if baseline_refusal else "recommended" if arm == baseline.arm else "eligible",
        refusal=baseline_refusal,
    )
    return Recommendation(
        baseline=baseline.arm,
        arm=arm,
        undecided=undecided,
        leader=leader if rivals else None,
        rivals=tuple(one.arm for one in rivals),
        small_step=small_step,
        standings=(reference, *(_standing(one, arm, small_step) for one in candidates)),
    )


def _is_eligible(one: Candidate) -> bool:
    return one.refusal is None and one.open is None


def _is_open(one: Candidate) -> bool:
    return one.refusal is None and one.open is not None


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
    """Tell whether `one` is faster by enough, in the pairs that both arms have with the baseline (None)."""
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
    """Tell whether an undecided arm might take the place of the chosen one, by its facts so far."""
    speedup = one.figures.speedup
    if speedup is None or not (speedup.interval or speedup.exact):
        return chosen is None
    if not one.speed_is_known:
        best = chosen.figures.speedup if chosen else None
        return (speedup.high or speedup.value) > (1 + MIN_DIFFERENCE) * (best.value if best else 1.0)
    return _choose(baseline, [one] if chosen is None else [chosen, one]) is one


def _standing(one: Candidate, recommended: str | None, small_step: SmallStep | None) -> ArmStanding:
    if one.refusal is not None:
        return ArmStanding(arm=one.arm, standing="refused", refusal=one.refusal)
    if one.open is not None:
        return ArmStanding(arm=one.arm, standing="undecided", open=one.open)
    if small_step is not None:
        return ArmStanding(arm=one.arm, standing="undecided", open="too small")
    return ArmStanding(arm=one.arm, standing="recommended" if one.arm == recommended else "eligible")
