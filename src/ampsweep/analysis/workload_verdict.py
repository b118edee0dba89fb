"""The verdict on a workload: the result of each arm, and the arm to train in."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, TooFewPairs, baseline_refusal, refusal, too_few_pairs
from ampsweep.analysis.judgements import Judgements, judge
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.parity import Parity, parity
from ampsweep.analysis.reasons import Reason, find_reasons
from ampsweep.analysis.recommendation import Recommendation, recommend
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a workload, with the parts that it is made of."""

    recommendation: Recommendation
    arms: tuple[ArmVerdict, ...]
    """All but the baseline, in the order of tables; none where the baseline did not run."""
    reasons: tuple[Reason, ...]
    """Reasons why speed and memory came out as they did."""


def reach_verdict(
    arms: Sequence[ArmComparison],
    runs: Sequence[Run],
    pairs: Sequence[Pair],
    *,
    baseline: str,
    margin_pct: float,
    curves: Curves | None = None,
) -> Verdict:
    """Judge the `arms` of one workload by its `runs`, their `pairs` and loss `curves`."""
    reference = next((arm for arm in arms if arm.is_baseline), None)
    if reference is None:
        nothing = Recommendation(baseline=baseline, arm=None, undecided="no baseline run")
        return Verdict(recommendation=nothing, arms=(), reasons=())
    others = [arm for arm in arms if not arm.is_baseline]
    candidates = tuple(_candidate(arm, reference, runs, pairs, margin_pct) for arm in others)
    baseline_runs = [run for run in runs if run.arm == baseline]
    verdicts = tuple(_arm_verdict(one, curves or {}) for one in candidates)
    waterfalls = {one.arm: one.waterfall for one in verdicts}
    return Verdict(
        recommendation=recommend(
            reference,
            candidates,
            baseline_refusal=baseline_refusal(baseline_runs),
            small_step=small_step(baseline_runs),
        ),
        arms=verdicts,
        reasons=find_reasons(runs, waterfalls, baseline=baseline),
    )


def _candidate(
    arm: ArmComparison, baseline: ArmComparison, runs: Sequence[Run], pairs: Sequence[Pair], margin_pct: float
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
        refusal=refusal(own_runs, baseline_runs, parities),
        too_few_pairs=too_few_pairs(arm, baseline),
    )


def _arm_verdict(one: Candidate, curves: Curves) -> ArmVerdict:
    return ArmVerdict(
        arm=one.arm,
        too_few_pairs=one.too_few_pairs,
        judgements=one.judgements,
        waterfall=waterfall(one.pairs),
        time_to_loss=time_to_loss(one.pairs, curves),
    )
