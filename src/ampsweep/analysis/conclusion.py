"""The conclusion of a workload: one sentence, computed from the figures, and refused where they do not carry it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.quantities import estimate, loss, num_bytes, percent, plural
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate, Spread

_FAILURES: Final = ("unsupported", "oom", "diverged", "interrupted", "failed", "cut short")


@dataclass(frozen=True, kw_only=True)
class ArmConclusion:
    """What can be said of one arm, or (`withheld`) why nothing is concluded about it."""

    arm: str
    withheld: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """`sentence` is all of it in one; `arms` its clauses, `cautions` what limits it to this workload."""

    sentence: str
    arms: tuple[ArmConclusion, ...]
    cautions: tuple[str, ...]


def conclude(
    arms: Sequence[ArmComparison], *, baseline: str, margin_pct: float, cautions: tuple[str, ...]
) -> Conclusion:
    """Conclude from the `arms` of one workload, the baseline among them (if it ran).

    An arm is judged when at least three pairs completed in both arms.

    Args:
        baseline: the arm the others are compared with.
        margin_pct: loss gap, in percent of the baseline's loss, to hold each gap against.
        cautions: what makes the workload too small to judge by.
    """
    reference = next((arm for arm in arms if arm.is_baseline), None)
    others = [arm for arm in arms if not arm.is_baseline]
    if reference is None:
        return Conclusion(sentence=f"No conclusion: there is no {baseline} run to compare with.", arms=(), cautions=())
    if not others:
        return Conclusion(sentence=f"No conclusion: there is no arm besides {baseline}.", arms=(), cautions=())
    concluded = tuple(_conclude_arm(arm, reference, margin_pct) for arm in others)
    judged = [f"{arm.arm} {arm.text}" for arm in concluded if not arm.withheld]
    withheld = [f"no conclusion about {arm.arm}: {arm.text}" for arm in concluded if arm.withheld]
    clauses = [f"against {baseline}, {'; '.join(judged)}"] if judged else []
    sentence = "; ".join([*clauses, *withheld, *cautions])
    return Conclusion(sentence=f"{sentence[0].upper()}{sentence[1:]}.", arms=concluded, cautions=cautions)


def _conclude_arm(arm: ArmComparison, reference: ArmComparison, margin_pct: float) -> ArmConclusion:
    if arm.num_completed_pairs < MIN_PAIRS:
        return ArmConclusion(arm=arm.arm, withheld=True, text=_why_withheld(arm, reference))
    clauses = (
        _speed_clause(arm.speedup),
        _memory_clause(arm.memory_saved_bytes, arm.memory_saved_pct),
        _loss_clause(arm, reference.val_loss, margin_pct),
    )
    return ArmConclusion(arm=arm.arm, withheld=False, text=", ".join(clauses))


def _why_withheld(arm: ArmComparison, reference: ArmComparison) -> str:
    if list(arm.statuses) == ["unsupported"]:
        return "unsupported on this device"
    done = f"{arm.num_completed_pairs} of {plural(arm.num_expected_pairs, 'pair')} completed"
    causes = [f"{count} {status}" for status, count in arm.statuses.items() if status in _FAILURES]
    causes += [
        f"{count} {reference.arm} {status}" for status, count in reference.statuses.items() if status in _FAILURES
    ]
    if not causes and arm.num_without_partner:
        causes = [f"{arm.num_without_partner} without a {reference.arm} run to pair with"]
    elif not causes and arm.num_completed_pairs < arm.num_expected_pairs:
        causes = [f"{arm.num_expected_pairs - arm.num_completed_pairs} not run"]
    why = f"{done} ({', '.join(causes)})" if causes else done
    if arm.num_expected_pairs < MIN_PAIRS:
        why += f" and {MIN_PAIRS} are needed"
    if "cut short" in arm.statuses and arm.speedup is not None:
        why += f", up to there its steps ran at {_speed_figure(arm.speedup)}"
    return why


def _speed_clause(speedup: Estimate | None) -> str:
    if speedup is None:
        return "speed was not measured"
    figure = _speed_figure(speedup)
    if not speedup.exact and speedup.interval is None:
        return f"ran at {figure}"
    if not speedup.resolves(1.0):
        return f"showed no resolved difference in speed: {figure}"
    return f"was {'faster' if speedup.value > 1 else 'slower'}: {figure}"


def _speed_figure(speedup: Estimate) -> str:
    return f"{estimate(speedup)[0]}x the speed ({_uncertainty(speedup)})"


def _memory_clause(saved: Estimate | None, share: Estimate | None) -> str:
    if saved is None or share is None:
        return "memory was not measured"
    if saved.value == 0:
        return f"needed the same peak memory (n={saved.n})"
    word, size, part = ("saved", saved, share) if saved.value > 0 else ("added", -saved, -share)
    figure = f"{num_bytes(size.value)} of peak memory ({percent(part.value)}, {_uncertainty(part, unit='%')})"
    if saved.interval is not None and not saved.resolves(0.0):
        return f"showed no resolved difference in memory: {word} {figure}"
    return f"{word} {figure}"


def _loss_clause(arm: ArmComparison, seeds: Spread | None, margin_pct: float) -> str:
    gap = arm.loss_gap
    if gap is None:
        return "no validation loss was recorded"
    if gap.value == 0:
        return f"reached the same validation loss (n={gap.n})"
    size = estimate(gap, digits=2)[0].removeprefix("-")
    direction = "lower" if gap.value < 0 else "higher"
    share = "" if arm.loss_gap_pct is None else f"{percent(abs(arm.loss_gap_pct))}, "
    figure = f"ended with a validation loss {size} {direction} ({share}{_uncertainty(gap, digits=2, sign=True)})"
    return "".join([figure, _against_margin(arm, gap, margin_pct), _against_seeds(gap, seeds)])


def _against_margin(arm: ArmComparison, gap: Estimate, margin_pct: float) -> str:
    """Where the gap and its interval lie against the margin: geometry, not a claim that the arms learned the same."""
    if not arm.loss_gap_pct:
        return ""
    margin = margin_pct * abs(gap.value / arm.loss_gap_pct)
    name = f"the margin of {margin_pct:g}%"
    if abs(gap.value) > margin:
        return f", outside {name}"
    if gap.interval is None or (gap.interval[0] >= -margin and gap.interval[1] <= margin):
        return f", inside {name}"
    return f", inside {name} although its interval reaches beyond it"


def _against_seeds(gap: Estimate, seeds: Spread | None) -> str:
    if seeds is None or seeds.sd is None:
        return ""
    side = "within" if abs(gap.value) <= seeds.sd else "beyond"
    return f", {side} the baseline's own spread over seeds (SD {loss(seeds.sd)})"


def _uncertainty(of: Estimate, *, digits: int = 3, sign: bool = False, unit: str = "") -> str:
    _, ends = estimate(of, digits=digits, sign=sign)
    if ends is not None:
        return f"95% interval {ends[0]} to {ends[1]}{unit}, n={of.n}"
    return f"exact, n={of.n}" if of.exact else f"n={of.n}, too few for an interval"
