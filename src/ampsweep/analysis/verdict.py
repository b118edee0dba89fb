"""The verdict on a workload: the result of each arm, and the arm to train in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, TooFewPairs, baseline_refusal, over_memory, refusal, too_few_pairs
from ampsweep.analysis.costs import OF_STEP, TO_LOSS, ArmValues, CostKind, Goal, arm_values, baseline_values
from ampsweep.analysis.dtype_steps import DtypeStep, dtype_steps
from ampsweep.analysis.front import Front, front
from ampsweep.analysis.judgements import Judgements, Parity, judge, parity
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.reasons import Pitfall, Reason, find_pitfalls, find_reasons
from ampsweep.analysis.recommendation import NoBaseline, Recommendation, StepTooSmall, recommend
from ampsweep.analysis.runs import VAL_ACCURACY, VAL_LOSS, Run
from ampsweep.analysis.step_limits import small_step
from ampsweep.analysis.time_to_loss import Curves, TimeToLoss, time_to_loss
from ampsweep.analysis.waterfall import Waterfall, waterfall


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

    @property
    def conclusion(self) -> str:
        """The findings on the arm, or why nothing is concluded about it, in a clause."""
        if self.too_few_pairs is None:
            return self.judgements.summary
        so_far = f", {self.judgements.speed_text}" if self.judgements.is_timed else ""
        return self.too_few_pairs.sentence + so_far

    @property
    def n(self) -> str:
        """The number of completed pairs, after a clause: ' (n=3)'."""
        return f" (n={self.judgements.num_completed_pairs})"


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
    pitfalls: tuple[Pitfall, ...] = ()
    """Known pitfalls of the arms' dtypes, the baseline's too."""

    @property
    def sentence(self) -> str:
        """The arm to train in, with its grounds, or why that is not decidable yet and what would decide it."""
        undecided, baseline = self.recommendation.undecided, self.recommendation.baseline
        if undecided is not None:
            return f"Not decidable yet: {undecided.sentence}; {undecided.next_steps[0]}."
        if self._chosen is not None:
            return f"Train in {self._chosen.arm}: against {baseline}, {self._brief(self._chosen)}{self._chosen.n}."
        others = [f"{arm.arm} has {self._brief(arm)}{arm.n}" for arm in self._judged]
        why = "; ".join(others) or "every other arm is refused, or short of three completed pairs"
        return f"Stay with {baseline}: {why}."

    @property
    def evidence(self) -> list[str]:
        """Speed, memory and parity of the recommended arm; of all that are not refused where it is none or the
        baseline.
        """
        if self._chosen is not None:
            return list(self._chosen.judgements.lines)
        undecided = self.recommendation.undecided
        small = [undecided.small_step.of_baseline] if isinstance(undecided, StepTooSmall) else []
        first = 1 if small else 0  # the lines begin with speed
        return small + [f"{arm.arm}: {line}" for arm in self._judged for line in arm.judgements.lines[first:]]

    @property
    def to_decide(self) -> list[str]:
        """The steps that would decide it; empty where it is decided."""
        undecided = self.recommendation.undecided
        return [] if undecided is None else [*undecided.next_steps]

    @property
    def _chosen(self) -> ArmVerdict | None:
        return next((arm for arm in self.arms if arm.arm == self.recommendation.arm), None)

    @property
    def _judged(self) -> list[ArmVerdict]:
        """Arms that are not refused and have their pairs."""
        refused = {one.arm for one in self.recommendation.standings if one.refusal is not None}
        return [arm for arm in self.arms if arm.arm not in refused and arm.too_few_pairs is None]

    def _brief(self, arm: ArmVerdict) -> str:
        """Speed, memory and parity, after the way to the loss where that decides."""
        ranked, to_loss = self.recommendation.ranking, arm.time_to_loss
        if ranked is None or not ranked.is_to_loss or to_loss is None:
            return arm.judgements.brief
        return f"{to_loss.brief(ranked.objective)}, {arm.judgements.brief}"


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
    pitfalls = find_pitfalls({arm.arm: [run for run in runs if run.arm == arm.arm] for arm in arms})
    reference = next((arm for arm in arms if arm.is_baseline), None)
    if reference is None:
        nothing = Recommendation(baseline=baseline, arm=None, undecided=NoBaseline(baseline=baseline))
        return Verdict(recommendation=nothing, arms=(), reasons=(), pitfalls=pitfalls)
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
    ways = {one.arm: (one.pairs, one.to_loss) for one in candidates}
    values = {baseline: baseline_values(baseline, list(ways.values()))}
    values |= {arm: arm_values(arm, *way) for arm, way in ways.items()}
    return Verdict(
        recommendation=recommended,
        arms=verdicts,
        reasons=find_reasons(runs, waterfalls, baseline=baseline),
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
    found = [parity(own_pairs, metric, margin_pct=margin_pct) for metric in (VAL_LOSS, VAL_ACCURACY)]
    parities = tuple(one for one in found if one is not None)
    return Candidate(
        figures=arm,
        judgements=judge(arm, baseline, parities),
        pairs=own_pairs,
        refusal=refusal(own_runs, baseline_runs, parities, goal),
        too_few_pairs=too_few_pairs(arm, baseline),
        to_loss=time_to_loss(own_pairs, curves, margin_pct=margin_pct),
    )


def _arm_verdict(one: Candidate) -> ArmVerdict:
    return ArmVerdict(
        arm=one.arm,
        too_few_pairs=one.too_few_pairs,
        judgements=one.judgements,
        waterfall=waterfall(one.pairs),
        time_to_loss=None if one.to_loss is None else one.to_loss.told,
    )
