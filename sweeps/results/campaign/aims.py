"""What the results were to reach, and whether they did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampsweep.text import percent
from campaign.results import Arm, Results
from campaign.tables import signed_percent, thousands

NO_WAITING_TEST = "test_on_cuda_nothing_waits_between_two_flushes"

Differences = Sequence[tuple[str, float]]
"""In percent, each with what it is of."""


@dataclass(frozen=True)
class Aim:
    """One line of the table; where nothing was measured, `measured` and `reached` are None."""

    what: str
    aim: str
    measured: str | None = None
    reached: bool | None = None


def aims(results: Results) -> Iterator[Aim]:
    """All of them."""
    recipe = [arm for workload in results.workloads("recipe") for arm in workload.arms]
    yield _within("recipe, step time of the suite against the loop by hand", 1.0, _times(recipe))
    yield _within("recipe, peak memory of the suite against the loop by hand", 1.0, _peaks(recipe))
    shares = {arm.name: arm.share_pct for arm in recipe if arm.share_pct is not None}
    told = ", ".join(f"{arm} {percent(share)}" for arm, share in shares.items()) or None
    reached = min(shares.values()) >= 75 if shares else None
    yield Aim("recipe, share of its roofline", "75 % in every mode", told, reached)
    yield from _tokens(results)
    for model, limit_pct in (("mlp_recipe", 1.0), ("gpt_small", 1.0), ("resnet50", 3.0)):
        yield _within(f"{model}, predicted peak memory against the measured", limit_pct, _errors(results, model))
    overhead = {
        f"{experiment} {arm.name}": share
        for experiment in ("recipe", "gpt_small", "resnet50")
        for workload in results.workloads(experiment)
        for arm in workload.arms
        if (share := arm.median("instrumentation/overhead_pct")) is not None
    }
    what, aim = "instrumentation, share of the step time", "at most 0.5 %"
    worst = max(overhead, key=lambda name: overhead[name], default=None)
    yield (
        Aim(what, aim)
        if worst is None
        else Aim(what, aim, f"{percent(overhead[worst])} at most ({worst})", overhead[worst] <= 0.5)
    )
    ran = [line for line in results.state.tests[:-1] if not line.startswith("SKIPPED")]
    yield _passed("waits for the device between two flushes", "none", [line for line in ran if NO_WAITING_TEST in line])
    yield _passed("the suite's tests on the GPU", "all pass", ran)


def _times(arms: list[Arm]) -> Differences:
    return [
        (arm.name, 100 * (arm.by_hand.against.value - 1))
        for arm in arms
        if arm.by_hand is not None and arm.by_hand.against is not None
    ]


def _peaks(arms: list[Arm]) -> Differences:
    return [
        (arm.name, 100 * (arm.figures.peak_memory_bytes / arm.by_hand.peak_bytes - 1))
        for arm in arms
        if arm.by_hand is not None and arm.by_hand.peak_bytes is not None and arm.figures.peak_memory_bytes is not None
    ]


def _tokens(results: Results) -> Iterator[Aim]:
    """Of compiled bfloat16, beside nanoGPT with the same vocabulary."""
    what = "GPT-2 124M in bfloat16, compiled, tokens/s"
    arms = [
        arm
        for workload in results.workloads("gpt_small")
        if workload.record.identity.compile
        for arm in workload.arms
        if arm.name == "amp_bf16"
    ]
    speeds = [(arm, speed) for arm in arms if (speed := arm.median("perf/tokens_per_sec")) is not None]
    both = [(speed, other) for arm, speed in speeds if arm.by_hand and (other := arm.by_hand.tokens_per_sec)]
    text = "; ".join(f"{thousands(one)} against {thousands(other)}" for one, other in both) or None
    yield Aim(what, "at least nanoGPT's", text, all(one >= other for one, other in both) if both else None)
    best = max((speed for _, speed in speeds), default=None)
    yield Aim(what, "600,000") if best is None else Aim(what, "600,000", thousands(best), best >= 600_000)


def _errors(results: Results, model: str) -> Differences:
    records = [record for record in results.records if record.identity.model == model and not record.identity.compile]
    return [
        (f"{record.arm}, batch {record.identity.batch_size}", record.prediction["error_pct"])
        for record in records
        if record.status == "completed" and record.batch_search is None
        if record.prediction and "error_pct" in record.prediction
    ]


def _within(what: str, limit_pct: float, differences: Differences) -> Aim:
    aim = f"within {limit_pct:g} %"
    if not differences:
        return Aim(what, aim)
    name, worst = max(differences, key=lambda one: abs(one[1]))
    return Aim(what, aim, f"{signed_percent(worst)} at most ({name}; n={len(differences)})", abs(worst) <= limit_pct)


def _passed(what: str, aim: str, lines: list[str]) -> Aim:
    passed = sum(line.startswith("PASSED") for line in lines)
    return Aim(what, aim, f"{passed} of {len(lines)} pass", passed == len(lines)) if lines else Aim(what, aim)
