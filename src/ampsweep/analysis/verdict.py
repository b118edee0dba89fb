"""The verdict on a workload: the result of each arm, and the arm to train in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, baseline_refusal, over_memory, refusal, too_few_pairs
from ampsweep.analysis.front import ArmValues, Front, front, values_of_arms
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
    pitfalls: tuple[Pitfall, ...] = ()

    @property
    def sentence(self) -> str:
        """The arm to train in, with its grounds, or why that is not decidable yet and what would decide it."""
        undecided, baseline = self.recommendation.undecided, self.recommendation.baseline
        if undecided is not None:
            return f"Not decidable yet: {undecided.sentence}; {undecided.next_steps[0]}."
        if (chosen := self._chosen) is not None:
            return f"Train in {chosen.arm}: against {baseline}, {chosen.judgements.summary}{chosen.n}."
        others = [f"{arm.arm} has {arm.judgements.summary}{arm.n}" for arm in self.arms if arm.is_judged]
        why = "; ".join(others) or "every other arm is refused, or short of three completed pairs"
        return f"Stay with {baseline}: {why}."

    @property
    def to_decide(self) -> list[str]:
        undecided = self.recommendation.undecided
        return [] if undecided is None else [*undecided.next_steps]

    @property
    def _chosen(self) -> Candidate | None:
        return next((arm for arm in self.arms if arm.arm == self.recommendation.arm), None)


def reach_verdict(
    arms: Sequence[ArmComparison],
    runs_of: Mapping[str, Sequence[Run]],
    pairs: Sequence[Pair],
    *,
    baseline: str,
    margin_pct: float,
    memory_gib: float | None,
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
                too_few_pairs=too_few_pairs(arm),
                judgements=judge(arm, reference, parities),
                waterfall=waterfall(own_pairs),
                time_to_loss=time_to_loss(own_pairs, curves, margin_pct=margin_pct),
                refusal=refusal(runs_of[arm.arm], runs_of[baseline], parities, memory_gib),
                pairs=own_pairs,
            )
        )
    values = values_of_arms(baseline, {one.arm: one.pairs for one in candidates})
    refused = baseline_refusal(runs_of[baseline])
    recommended = recommend(
        reference,
        candidates,
        {arm: of_arm["time"] for arm, of_arm in values.items()},
        baseline_refusal=refused or over_memory(runs_of[baseline], memory_gib),
        small_step=small_step(runs_of[baseline]),
        memory_gib=memory_gib,
    )
    return Verdict(
        recommendation=recommended,
        arms=tuple(candidates),
        reasons=find_reasons(runs_of, {one.arm: one.waterfall for one in candidates}, baseline=baseline),
        front=None if refused is not None else _front(values, candidates),
        pitfalls=pitfalls,
    )


def _front(values: Mapping[str, ArmValues], candidates: Sequence[Candidate]) -> Front | None:
    """The front of the arms with these `values`, the baseline's first, but those that cannot be trained in."""
    out = {one.arm for one in candidates if one.refusal is not None and not one.refusal.trains}
    margins = [one.margin for arm in candidates for one in arm.judgements.parities if one.metric == VAL_LOSS]
    return front({arm: one for arm, one in values.items() if arm not in out}, margin=max(margins, default=None))
