"""The verdict on a workload: the result of each arm, and the arm to train in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.arm_values import ArmValues, arm_values, baseline_values
from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import (
    Candidate,
    TooFewPairs,
    baseline_refusal,
    over_memory,
    refusal,
    too_few_pairs,
)
from ampsweep.analysis.costs import OF_STEP, TO_LOSS, CostKind
from ampsweep.analysis.dtype_steps import DtypeStep, dtype_steps
from ampsweep.analysis.front import Front, front
from ampsweep.analysis.goal import Goal
from ampsweep.analysis.judgements import Judgements, judge
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.parity import Parity, parity
from ampsweep.analysis.pitfalls import Pitfall, pitfalls
from ampsweep.analysis.reasons import Reason, find_reasons
from ampsweep.analysis.recommendation import Recommendation, recommend
from ampsweep.analysis.runs import VAL_ACCURACY, VAL_LOSS, Run
from ampsweep.analysis.step_limits import small_step
from ampsweep.analysis.time_to_loss import Curves, TimeToLoss, time_to_loss
from ampsweep.analysis.waterfall import Waterfall, waterfall

_TRAINABLE: Final = ("worse", "over memory")
"""Refusals of arms that train all the same, so that they have a place beside the others."""


@dataclass(frozen=True, kw_only=True)
class ArmVerdict:
    """The verdict on an arm other than the baseline."""

    arm: str
    too_few_pairs: TooFewPairs | None
    """The reason why nothing is concluded about it; None for an arm with at least three completed pairs."""
    judgements: Judgements
    waterfall: Waterfall | None
    time_to_loss: TimeToLoss | None

    @property
    def parities(self) -> tuple[Parity, ...]:
        """One of the final validation loss, and one of the accuracy where there is one."""
        return self.judgements.parities


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a workload, with the parts that it is made of."""

    recommendation: Recommendation
    arms: tuple[ArmVerdict, ...]
    """All but the baseline, in the order of tables; none where the baseline did not run."""
    reasons: tuple[Reason, ...]
    """Reasons why speed and memory came out as they did."""
    front: Front | None = None
    """The arms that no other beats; None without two arms that were measured."""
    steps: tuple[DtypeStep, ...] = ()
    """The steps away from float32 and what each buys."""
    pitfalls: tuple[tuple[str, Pitfall], ...] = ()
    """Known pitfalls of the arms' dtypes, arm by arm, the baseline's too."""


def reach_verdict(
    arms: Sequence[ArmComparison],
    runs: Sequence[Run],
    pairs: Sequence[Pair],
    *,
    baseline: str,
    margin_pct: float,
    goal: Goal,
    curves: Curves,
) -> Verdict:
    """Judge the `arms` of one workload by its `runs`, their `pairs` and loss `curves`."""
    told = tuple((arm.arm, one) for arm in arms for one in pitfalls([run for run in runs if run.arm == arm.arm]))
    reference = next((arm for arm in arms if arm.is_baseline), None)
    if reference is None:
        nothing = Recommendation(baseline=baseline, arm=None, undecided="no baseline run")
        return Verdict(recommendation=nothing, arms=(), reasons=(), pitfalls=told)
    others = [arm for arm in arms if not arm.is_baseline]
    candidates = tuple(_candidate(arm, reference, runs, pairs, margin_pct, goal, curves) for arm in others)
    baseline_runs = [run for run in runs if run.arm == baseline]
    verdicts = tuple(_arm_verdict(one) for one in candidates)
    waterfalls = {one.arm: one.waterfall for one in verdicts}
    refused = baseline_refusal(baseline_runs)
    recommended = recommend(
        reference,
        candidates,
        baseline_refusal=refused or over_memory(baseline_runs, goal),
        small_step=small_step(baseline_runs),
        goal=goal,
    )
    cost = TO_LOSS[goal.objective] if recommended.ranking is None else recommended.ranking.cost
    ways = {one.arm: (one.pairs, one.time_to_loss) for one in candidates}
    values = {baseline: baseline_values(baseline, list(ways.values()))}
    values |= {arm: arm_values(arm, *way) for arm, way in ways.items()}
    return Verdict(
        recommendation=recommended,
        arms=verdicts,
        reasons=find_reasons(runs, waterfalls, baseline=baseline),
        front=None if refused is not None else _front(values, candidates, cost, goal),
        steps=dtype_steps({arm.arm: arm.dtypes for arm in arms}, values, cost),
        pitfalls=told,
    )


def _front(
    values: Mapping[str, ArmValues], candidates: Sequence[Candidate], cost: CostKind, goal: Goal
) -> Front | None:
    """The front of the arms with these `values`, the baseline's first, but those that cannot be trained in."""
    out = {one.arm for one in candidates if one.refusal is not None and one.refusal.kind not in _TRAINABLE}
    margins = [one.margin for arm in candidates for one in arm.judgements.parities if one.metric == VAL_LOSS]
    return front(
        [one for arm, one in values.items() if arm not in out],
        cost,
        fallback=OF_STEP[goal.objective],
        margin=max(margins, default=None),
    )


def _candidate(
    arm: ArmComparison,
    baseline: ArmComparison,
    runs: Sequence[Run],
    pairs: Sequence[Pair],
    margin_pct: float,
    goal: Goal,
    curves: Curves,
) -> Candidate:
    own_runs, baseline_runs = ([run for run in runs if run.arm == one.arm] for one in (arm, baseline))
    own_pairs = tuple(pair for pair in pairs if pair.arm == arm.arm)
    metrics = ((VAL_LOSS, baseline.val_loss), (VAL_ACCURACY, baseline.val_accuracy))
    found = [parity(own_pairs, metric, margin_pct=margin_pct, baseline=spread) for metric, spread in metrics]
    parities = tuple(one for one in found if one is not None)
    return Candidate(
        figures=arm,
        judgements=judge(arm, baseline, parities),
        pairs=own_pairs,
        refusal=refusal(own_runs, baseline_runs, parities, goal),
        too_few_pairs=too_few_pairs(arm, baseline),
        time_to_loss=time_to_loss(own_pairs, curves, margin_pct=margin_pct),
    )


def _arm_verdict(one: Candidate) -> ArmVerdict:
    return ArmVerdict(
        arm=one.arm,
        too_few_pairs=one.too_few_pairs,
        judgements=one.judgements,
        waterfall=waterfall(one.pairs),
        time_to_loss=one.time_to_loss,
    )
