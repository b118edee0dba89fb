"""The verdict on a workload: the outcome of each arm, and the arm to train in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.candidates import Candidate, baseline_refusals, refusals, too_few_pairs
from ampsweep.analysis.deciding_command import Started, deciding_command
from ampsweep.analysis.headline import headline
from ampsweep.analysis.judgements import final_parities, judge
from ampsweep.analysis.pairing import Pair
from ampsweep.analysis.pareto_front import Front, front, values_of_arms
from ampsweep.analysis.reasons import Pitfall, Reason, find_pitfalls, find_reasons
from ampsweep.analysis.recommendation import NoBaseline, Recommendation, recommend
from ampsweep.analysis.runs import Run
from ampsweep.analysis.time_to_loss import Curves, time_to_loss
from ampsweep.analysis.waterfall import waterfall
from ampsweep.text import as_sentence


@dataclass(frozen=True, kw_only=True)
class Verdict:
    sentence: str  # the answer
    command: str | None  # that would decide an open one, for runs of a multirun
    recommendation: Recommendation
    arms: tuple[Candidate, ...] = ()  # all but the baseline, in the order of tables; empty without the baseline
    reasons: tuple[Reason, ...] = ()
    front: Front | None = None
    pitfalls: tuple[Pitfall, ...] = ()


def reach_verdict(
    arms: Sequence[ArmComparison],
    runs_of: Mapping[str, Sequence[Run]],
    pairs: Sequence[Pair],
    *,
    baseline: str,
    margin_pct: float,
    max_pairs: int | None,
    memory_gib: float | None,
    curves: Curves,
    started: Started,
) -> Verdict:
    pitfalls = find_pitfalls(runs_of)
    reference = next((arm for arm in arms if arm.is_baseline), None)
    if reference is None:
        nothing = Recommendation(baseline=baseline, arm=None, undecided=NoBaseline(baseline=baseline))
        sentence, command = as_sentence(headline(nothing, (), "")), deciding_command(nothing, runs_of, started)
        return Verdict(sentence=sentence, command=command, recommendation=nothing, pitfalls=pitfalls)
    keys, candidates = reference.keys, []
    for arm in arms:
        if arm.is_baseline:
            continue
        own_pairs = tuple(pair for pair in pairs if pair.arm == arm.arm)
        tests = final_parities(own_pairs, keys, margin_pct=margin_pct, max_pairs=max_pairs)
        candidates.append(
            Candidate(
                arm=arm.arm,
                too_few_pairs=too_few_pairs(arm),
                judgements=judge(arm, tests),
                waterfall=waterfall(own_pairs),
                time_to_loss=time_to_loss(own_pairs, curves, keys, margin_pct=margin_pct),
                refusal=next(refusals(runs_of[arm.arm], runs_of[baseline], tests, memory_gib), None),
                pairs=own_pairs,
            )
        )
    values = values_of_arms(baseline, {candidate.arm: candidate.pairs for candidate in candidates})
    refused = next(baseline_refusals(runs_of[baseline], memory_gib), None)
    recommended = recommend(
        reference,
        candidates,
        {arm: of_arm["time"] for arm, of_arm in values.items()},
        baseline_refusal=refused,
        memory_gib=memory_gib,
    )
    trains = refused is None or refused.trains
    out = {arm.arm for arm in candidates if arm.refusal is not None and not arm.refusal.trains}
    out |= {arm.arm for arm in arms if arm.disturbed_step_ms is not None}
    placed = {arm: own for arm, own in values.items() if arm not in out}
    tested = [parity for arm in candidates for parity in arm.judgements.parities if parity.metric == keys.metric]
    margin = max((parity.margin for parity in tested), default=None)
    return Verdict(
        sentence=as_sentence(headline(recommended, candidates, _place(runs_of[baseline]))),
        command=deciding_command(recommended, runs_of, started),
        recommendation=recommended,
        arms=tuple(candidates),
        reasons=find_reasons(runs_of, {arm.arm: arm.waterfall for arm in candidates}, baseline=baseline),
        front=front(placed, margin=margin, is_higher_better=keys.is_higher_better) if trains else None,
        pitfalls=pitfalls,
    )


def _place(baseline_runs: Sequence[Run]) -> str:
    """Where its speeds hold; empty if the records do not say."""
    of = baseline_runs[0].record.identity
    return "on this CPU" if of.device.startswith("cpu") else "" if of.device_name is None else f"on {of.device_name}"
