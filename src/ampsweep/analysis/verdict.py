"""The verdict on a workload: the result of each arm, and the arm to train in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, baseline_refusal, over_memory, refusal, too_few_pairs
from ampsweep.analysis.costs import OF_STEP, TO_LOSS, ArmValues, CostKind, Goal, values_of_arms
from ampsweep.analysis.dtype_steps import DtypeStep, dtype_steps
from ampsweep.analysis.front import Front, front
from ampsweep.analysis.judgements import judge, parity
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.reasons import Pitfall, Reason, find_pitfalls, find_reasons
from ampsweep.analysis.recommendation import NoBaseline, Recommendation, recommend
from ampsweep.analysis.runs import VAL_ACCURACY, VAL_LOSS, Run
from ampsweep.analysis.step_limits import small_step
from ampsweep.analysis.time_to_loss import Curves, time_to_loss
from ampsweep.analysis.waterfall import waterfall


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a workload, with the parts that it is made of."""

    recommendation: Recommendation
    arms: tuple[Candidate, ...]
    """All but the baseline, in the order of tables; none where the baseline did not run."""
    reasons: tuple[Reason, ...]
    front: Front | None = None
    steps: tuple[DtypeStep, ...] = ()
    pitfalls: tuple[Pitfall, ...] = ()

    @property
    def sentence(self) -> str:
        """The arm to train in, with its grounds, or why that is not decidable yet and what would decide it."""
        undecided, baseline = self.recommendation.undecided, self.recommendation.baseline
        if undecided is not None:
            return f"Not decidable yet: {undecided.sentence}; {undecided.next_steps[0]}."
        if self._chosen is not None:
            return f"Train in {self._chosen.arm}: against {baseline}, {self._brief(self._chosen)}{self._chosen.n}."
        others = [f"{arm.arm} has {self._brief(arm)}{arm.n}" for arm in self.arms if arm.is_judged]
        why = "; ".join(others) or "every other arm is refused, or short of three completed pairs"
        return f"Stay with {baseline}: {why}."

    @property
    def to_decide(self) -> list[str]:
        undecided = self.recommendation.undecided
        return [] if undecided is None else [*undecided.next_steps]

    @property
    def _chosen(self) -> Candidate | None:
        return next((arm for arm in self.arms if arm.arm == self.recommendation.arm), None)

    def _brief(self, arm: Candidate) -> str:
        """Speed, memory and parity, after the way to the loss where that decides."""
        ranked, to_loss = self.recommendation.ranking, arm.time_to_loss
        if ranked is None or not ranked.is_to_loss or to_loss is None:
            return arm.judgements.brief
        return f"{to_loss.brief(ranked.objective)}, {arm.judgements.brief}"


def reach_verdict(
    arms: Sequence[ArmComparison],
    runs_of: Mapping[str, Sequence[Run]],
    pairs: Sequence[Pair],
    *,
    baseline: str,
    margin_pct: float,
    goal: Goal,
    curves: Curves,
) -> Verdict:
    """Judge the `arms` of one workload by the runs of each, their `pairs` and loss `curves`."""
    pitfalls = find_pitfalls(runs_of)
    reference = next((arm for arm in arms if arm.is_baseline), None)
    if reference is None:
        nothing = Recommendation(baseline=baseline, arm=None, undecided=NoBaseline(baseline=baseline))
        return Verdict(recommendation=nothing, arms=(), reasons=(), pitfalls=pitfalls)
    candidates = []
    for arm in arms:
        if arm.is_baseline:
            continue
        own_pairs = tuple(pair for pair in pairs if pair.arm == arm.arm)
        found = (parity(own_pairs, metric, margin_pct=margin_pct) for metric in (VAL_LOSS, VAL_ACCURACY))
        parities = tuple(one for one in found if one is not None)
        candidates.append(
            Candidate(
                arm=arm.arm,
                too_few_pairs=too_few_pairs(arm, reference),
                judgements=judge(arm, reference, parities),
                waterfall=waterfall(own_pairs),
                time_to_loss=time_to_loss(own_pairs, curves, margin_pct=margin_pct),
                refusal=refusal(runs_of[arm.arm], runs_of[baseline], parities, goal),
                pairs=own_pairs,
            )
        )
    values = values_of_arms(baseline, {one.arm: (one.pairs, one.time_to_loss) for one in candidates})
    refused = baseline_refusal(runs_of[baseline])
    recommended = recommend(
        reference,
        candidates,
        values,
        baseline_refusal=refused or over_memory(runs_of[baseline], goal),
        small_step=small_step(runs_of[baseline]),
        goal=goal,
    )
    cost = TO_LOSS[goal.objective] if recommended.ranking is None else recommended.ranking.cost
    return Verdict(
        recommendation=recommended,
        arms=tuple(candidates),
        reasons=find_reasons(runs_of, {one.arm: one.waterfall for one in candidates}, baseline=baseline),
        front=None if refused is not None else _front(values, candidates, cost, goal),
        steps=dtype_steps({arm.arm: arm.dtypes for arm in arms}, values, cost),
        pitfalls=pitfalls,
    )


def _front(
    values: Mapping[str, ArmValues], candidates: Sequence[Candidate], cost: CostKind, goal: Goal
) -> Front | None:
    """The front of the arms with these `values`, the baseline's first, but those that cannot be trained in."""
    out = {one.arm for one in candidates if one.refusal is not None and not one.refusal.trains}
    margins = [one.margin for arm in candidates for one in arm.judgements.parities if one.metric == VAL_LOSS]
    return front(
        {arm: one for arm, one in values.items() if arm not in out},
        cost,
        fallback=OF_STEP[goal.objective],
        margin=max(margins, default=None),
    )
