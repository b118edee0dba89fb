"""The conclusion of a workload: one sentence, computed from the figures, and refused where they do not carry it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.verdict import ArmVerdict


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
    arms: Sequence[ArmComparison], verdicts: Sequence[ArmVerdict], *, baseline: str, cautions: tuple[str, ...]
) -> Conclusion:
    """Conclude from the `verdicts` on the `arms` of one workload.

    An arm is judged when at least three pairs completed in both arms.

    Args:
        arms: the arms of the workload, the baseline among them (if it ran).
        verdicts: one for each arm but the baseline.
        baseline: the arm the others are compared with.
        cautions: what makes the workload too small to judge by.
    """
    if not any(arm.is_baseline for arm in arms):
        return Conclusion(sentence=f"No conclusion: there is no {baseline} run to compare with.", arms=(), cautions=())
    if not verdicts:
        return Conclusion(sentence=f"No conclusion: there is no arm besides {baseline}.", arms=(), cautions=())
    num_pairs = {arm.arm: arm.num_completed_pairs for arm in arms}
    concluded = tuple(_conclude_arm(one) for one in verdicts)
    judged = [f"{one.arm} (n={num_pairs[one.arm]}): {one.text}" for one in concluded if not one.withheld]
    withheld = [f"no conclusion about {one.arm}: {one.text}" for one in concluded if one.withheld]
    clauses = [f"against {baseline}, {'; '.join(judged)}"] if judged else []
    sentence = "; ".join([*clauses, *withheld, *cautions])
    return Conclusion(sentence=f"{sentence[0].upper()}{sentence[1:]}.", arms=concluded, cautions=cautions)


def _conclude_arm(verdict: ArmVerdict) -> ArmConclusion:
    if verdict.withheld is None:
        return ArmConclusion(arm=verdict.arm, withheld=False, text=verdict.judgements.summary)
    return ArmConclusion(arm=verdict.arm, withheld=True, text=verdict.withheld + _speed_so_far(verdict.judgements))


def _speed_so_far(judged: Judgements) -> str:
    """Of runs cut short or short of a pair, what is known already."""
    return f", {judged.speed_text}" if judged.speed in ("faster", "slower", "same", "unresolved") else ""
