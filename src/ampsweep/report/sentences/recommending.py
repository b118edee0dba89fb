"""The recommendation and the conclusion of a workload in words, with what they stand on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.candidates import OpenKind, Refusal, TooFewPairs
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.costs import PassedOver
from ampsweep.analysis.equivalence import MAX_FURTHER_PAIRS
from ampsweep.analysis.recommendation import ArmStanding
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.analysis.workload_verdict import ArmVerdict, Verdict
from ampsweep.report.sentences.arm_findings import (
    brief,
    lines,
    metric_words,
    parity_grounds,
    speed,
    summary,
    to_loss_brief,
)
from ampsweep.report.sentences.explaining import TOO_SMALL, caution
from ampsweep.text import listed, num_bytes, plural

_MAX_NAMED: Final = 4
"""Arms that a sentence names; more are counted."""


def recommendation(of: Verdict) -> str:
    """The arm to train in, with its grounds, or why that is not decidable yet and what would decide it."""
    recommended, baseline = of.recommendation, of.recommendation.baseline
    if recommended.undecided is not None:
        return f"Not decidable yet: {_undecided(of)}; {to_decide(of)[0]}."
    chosen = next((arm for arm in of.arms if arm.arm == recommended.arm), None)
    if chosen is not None:
        return f"Train in {chosen.arm}: against {baseline}, {_brief(chosen, of)}{_n(chosen)}."
    others = [f"{arm.arm} has {_brief(arm, of)}{_n(arm)}" for arm in _judged(of)]
    why = "; ".join(others) or "every other arm is refused, or short of three completed pairs"
    return f"Stay with {baseline}: {why}."


def goes_by(of: Verdict) -> str | None:
    """Name the cost that ranked the arms, and say why it is not the one up to the loss; None where nothing could be."""
    ranked, limit = of.recommendation.ranking, of.recommendation.goal.memory_bytes
    if ranked is None:
        return None
    within = "" if limit is None else f", within {num_bytes(limit)}"
    if ranked.is_to_loss:
        assert ranked.metric is not None, ranked
        loss = f"the {metric_words(ranked.metric)} that {of.recommendation.baseline} ends at"
        return f"the {ranked.objective} to {loss} (and {ranked.margin_pct:g}% of margin){within}"
    rule = f"the {ranked.cost}, among arms whose final loss is not worse{within}"
    if not ranked.passed_over:
        return f"{rule}; the {ranked.objective} to the loss is not known while no arm has three completed pairs"
    why = "; ".join(_passed_over(one) for one in ranked.passed_over)
    return f"{rule}; not by the {ranked.objective} to the loss: {why}"


def evidence(of: Verdict) -> list[str]:
    """Speed, memory and parity of the recommended arm; of all that are not refused where it is none or the baseline."""
    recommended = of.recommendation
    chosen = next((arm for arm in of.arms if arm.arm == recommended.arm), None)
    if chosen is not None:
        return list(lines(chosen.judgements))
    small = recommended.small_step
    first = 0 if small is None else 1  # the lines begin with speed
    known = [f"{arm.arm}: {line}" for arm in _judged(of) for line in lines(arm.judgements)[first:]]
    return known if small is None else [caution(small), *known]


def to_decide(of: Verdict) -> list[str]:
    """The steps that would decide it; empty where it is decided."""
    baseline = of.recommendation.baseline
    match of.recommendation.undecided:
        case None:
            return []
        case "no baseline run":
            return [f"run {baseline}, or compare with another arm (report.baseline)"]
        case "baseline refused":
            return ["compare with another arm (report.baseline)"]
        case "no other arm":
            return ["run other precision modes"]
        case "too small":
            return ["compare on a larger model, batch or sequence"]
        case "no energy":
            return ["compare on a device that counts its energy, or by time (report.objective)"]
        case "over memory":
            return ["allow more memory (report.memory_gib), or compare modes that need less"]
        case "rivals":
            steps = [_next_step(arm, missing) for arm, missing in _rivals(of)]
            return list(dict.fromkeys(steps))


def standing(of: ArmStanding, verdict: Verdict) -> str:
    """Say why an arm is recommended, eligible, undecided or refused."""
    if of.refusal is not None:
        return refusal(of.refusal)
    arm = next((one for one in verdict.arms if one.arm == of.arm), None)
    if arm is None:
        return "what the others are compared with"
    return f"{summary(arm.judgements)}{_n(arm)}" if of.open is None else _missing(arm, of.open)


def refusal(of: Refusal) -> str:
    """Say why an arm is refused whatever its speed."""
    match of.kind:
        case "unsupported":
            return _unsupported(of.cause)
        case "disproved":
            return f"{of.cause} in {_seeds(of.seeds)}"
        case "diverged":
            others = f"; diverged otherwise in {_seeds(of.other_seeds)}" if of.other_seeds else ""
            return f"{'diverged' if of.cause is None else of.cause} in {_seeds(of.seeds)}{others}"
        case "mostly failing":
            outcome = "out of memory" if of.outcome == "oom" else of.outcome
            why = "" if of.cause is None else f" ({of.cause})"
            return f"{outcome} in {of.num_such} of {plural(of.num_runs, 'run')}{why}"
        case "emulated":
            return f"emulated, hence without speed and memory: {of.cause}"
        case "worse":
            assert of.parity is not None
            return f"{metric_words(of.parity.metric)} is worse: {parity_grounds(of.parity)}"
        case "over memory":
            assert of.peak_bytes is not None
            assert of.limit_bytes is not None
            return f"needs {num_bytes(of.peak_bytes)} at its peak, more than the {num_bytes(of.limit_bytes)} given"


def too_few_pairs(of: TooFewPairs) -> str:
    """Say which pairs are missing, and why."""
    if of.unsupported:
        return _unsupported(None)
    done = f"{of.num_completed} of {plural(of.num_expected, 'pair')} completed"
    causes = _causes(of)
    why = f"{done} ({', '.join(causes)})" if causes else done
    return f"{why} and {MIN_PAIRS} are needed" if of.num_expected < MIN_PAIRS else why


@dataclass(frozen=True)
class ArmConclusion:
    """The clause on one arm: its findings, or (`withheld`) why nothing is concluded about it."""

    arm: str
    withheld: bool
    text: str


def conclusions(workload: WorkloadComparison) -> list[ArmConclusion]:
    """The clauses of a workload's conclusion: an arm is judged when three pairs completed in both arms."""
    return [_conclude_arm(arm) for arm in workload.verdict.arms]


def conclusion(workload: WorkloadComparison) -> str:
    """The findings on all arms of a workload, and their limits, in one sentence."""
    baseline = workload.verdict.recommendation.baseline
    if not any(arm.is_baseline for arm in workload.arms):
        return f"No conclusion: there is no {baseline} run to compare with."
    if not workload.verdict.arms:
        return f"No conclusion: there is no arm besides {baseline}."
    concluded = list(zip(workload.verdict.arms, conclusions(workload), strict=True))
    judged = [f"{one.arm}{_n(arm)}: {one.text}" for arm, one in concluded if not one.withheld]
    withheld = [f"no conclusion about {one.arm}: {one.text}" for _, one in concluded if one.withheld]
    clauses = [f"against {baseline}, {'; '.join(judged)}"] if judged else []
    sentence = "; ".join([*clauses, *withheld, *map(caution, workload.cautions)])
    return f"{sentence[0].upper()}{sentence[1:]}."


def _conclude_arm(arm: ArmVerdict) -> ArmConclusion:
    if arm.too_few_pairs is None:
        return ArmConclusion(arm.arm, withheld=False, text=summary(arm.judgements))
    is_known = arm.judgements.speed in ("faster", "slower", "same", "unresolved")
    so_far = f", {speed(arm.judgements)}" if is_known else ""
    return ArmConclusion(arm.arm, withheld=True, text=too_few_pairs(arm.too_few_pairs) + so_far)


def _undecided(of: Verdict) -> str:
    recommended, baseline = of.recommendation, of.recommendation.baseline
    match recommended.undecided:
        case "no baseline run":
            return f"there is no {baseline} run to compare with"
        case "baseline refused":
            reference = recommended.standings[0].refusal
            assert reference is not None
            return f"{baseline}, which all is compared with, is refused: {refusal(reference)}"
        case "no other arm":
            return f"there is no arm besides {baseline}"
        case "too small":
            return TOO_SMALL
        case "no energy":
            return "no device counted the energy of any arm"
        case "over memory":
            limit = recommended.goal.memory_bytes
            assert limit is not None, recommended
            return f"no arm that could be recommended fits into the {num_bytes(limit)} given"
        case _:
            arm, missing = _rivals(of)[0]
            may_be = "the one" if recommended.leader is None else f"better than {recommended.leader}"
            return f"{arm.arm} may be {may_be}, but {_missing(arm, missing)}"


def _rivals(of: Verdict) -> list[tuple[ArmVerdict, OpenKind]]:
    """The undecided arms that may be better, each with the first thing missing."""
    missing = {one.arm: one.open for one in of.recommendation.standings}
    arms = {arm.arm: arm for arm in of.arms}
    return [(arms[arm], kind) for arm in of.recommendation.rivals if (kind := missing[arm]) is not None]


def _missing(arm: ArmVerdict, kind: OpenKind) -> str:
    match kind:
        case "cut short" | "too few pairs":
            assert arm.too_few_pairs is not None
            return too_few_pairs(arm.too_few_pairs)
        case "speed not known":
            return f"its speed is not known well enough: {speed(arm.judgements)}"
        case "energy not known":
            return "its energy is not known well enough"
        case "no final loss":
            return "no validation loss was recorded"
        case "parity open":
            unsettled = [one for one in arm.parities if not one.not_worse]
            return "; ".join(
                f"its {metric_words(one.metric)} may be worse by more than the margin ({parity_grounds(one)})"
                for one in unsettled
            )
        case "too small":
            return TOO_SMALL


def _next_step(arm: ArmVerdict, kind: OpenKind) -> str:
    match kind:
        case "cut short":
            return f"let {arm.arm} take all of its steps (fewer trainer.steps, or more trainer.max_seconds)"
        case "too few pairs":
            missing = MIN_PAIRS - arm.judgements.num_completed_pairs
            return f"complete {plural(missing, 'more pair')} of {arm.arm} with the baseline"
        case "speed not known":
            return f"time {arm.arm} again with more seeds, on an idle machine"
        case "energy not known":
            return f"run more seeds of {arm.arm}, on an idle device"
        case "no final loss":
            return "use data with a validation part, so that there is a final loss to compare"
        case "parity open":
            return _settle_parity(arm)
        case "too small":
            return "compare on a larger model, batch or sequence"


def _settle_parity(arm: ArmVerdict) -> str:
    unsettled = [one for one in arm.parities if not one.not_worse]
    needed = [one.further_seeds for one in unsettled]
    known = [seeds for seeds in needed if seeds is not None]
    if len(known) == len(needed):
        return f"run about {plural(max(known), 'more seed')} of {arm.arm} and the baseline"
    margin = f"{unsettled[0].margin_pct:g}"
    what = f"train longer, or for the next runs accept a wider report.margin_pct than {margin}"
    return f"{what} (more than {MAX_FURTHER_PAIRS} more seeds would be needed)"


def _causes(of: TooFewPairs) -> list[str]:
    failures = [f"{count} {status}" for status, count in of.failures.items()]
    failures += [f"{count} {of.baseline} {status}" for status, count in of.baseline_failures.items()]
    if failures:
        return failures
    if of.num_without_partner:
        return [f"{of.num_without_partner} without a {of.baseline} run to pair with"]
    missing = of.num_expected - of.num_completed
    return [f"{missing} not run"] if missing > 0 else []


def _unsupported(cause: str | None) -> str:
    return "unsupported on this device" if cause is None else f"unsupported: {cause}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))}"


def _judged(of: Verdict) -> list[ArmVerdict]:
    """Arms that are not refused and have their pairs."""
    refused = {one.arm for one in of.recommendation.standings if one.refusal is not None}
    return [arm for arm in of.arms if arm.arm not in refused and arm.too_few_pairs is None]


def _brief(arm: ArmVerdict, of: Verdict) -> str:
    """Speed, memory and parity, after the way to the loss where that decides."""
    ranked, to_loss = of.recommendation.ranking, arm.time_to_loss
    if ranked is None or not ranked.is_to_loss or to_loss is None:
        return brief(arm.judgements)
    return f"{to_loss_brief(to_loss, ranked.objective)}, {brief(arm.judgements)}"


def _passed_over(of: PassedOver) -> str:
    arms = listed(of.arms) if len(of.arms) <= _MAX_NAMED else plural(len(of.arms), "arm")
    match of.kind:
        case "no curves":
            return f"no undisturbed curve of the loss is known of {arms}"
        case "other metrics":
            return f"the curves of {arms} are of another loss"
        case "no energy":
            return f"no energy was counted along the curves of {arms}"
        case "not reached":
            return f"{arms} did not reach it in every pair"
        case "too few pairs":
            return f"fewer than {MIN_PAIRS} pairs have curves of {arms}"
        case "too noisy":
            return f"that of {arms} is too noisy"


def _n(arm: ArmVerdict) -> str:
    return f" (n={arm.judgements.num_completed_pairs})"
