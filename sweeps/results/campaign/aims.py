"""What the results were to reach, and whether they did."""

from collections.abc import Iterator
from dataclasses import dataclass

from ampsweep.text import percent
from campaign.beside import nanogpt_pairs
from campaign.memory import WORKLOADS
from campaign.results import Results, arms_of
from campaign.section import table, thousands

NO_WAITING_TEST = "test_on_cuda_nothing_waits_between_two_flushes"


@dataclass(frozen=True)
class Aim:
    """One line of the table; `reached` is None where nothing was measured."""

    what: str
    aim: str
    measured: str | None = None
    reached: bool | None = None


def aims_table(results: Results) -> list[str]:
    """All aims."""
    words = {True: "yes", False: "no", None: "not measured"}
    rows = [[aim.what, aim.aim, aim.measured or "-", words[aim.reached]] for aim in _aims(results)]
    return table(["what", "aim", "measured", "reached"], rows, figures=False)


def _aims(results: Results) -> Iterator[Aim]:
    yield from _by_hand(results)
    yield _share(results)
    yield from _tokens(results)
    yield from (_predicted(results, *one) for one in (("mlp_recipe", 1.0), ("gpt_small", 1.0), ("resnet50", 3.0)))
    yield _overhead(results)
    yield from _tests(results)


def _by_hand(results: Results) -> Iterator[Aim]:
    arms = arms_of(results.of("recipe"))
    found = [(arm, by_hand) for arm in arms if (by_hand := results.hand("recipe", arm.arm, arm)) is not None]
    times = {arm.arm: 100 * (one.against.value - 1) for arm, one in found if one.against is not None}
    yield _worst("recipe, step time of the suite against the loop by hand", 1.0, times)
    peaks = {
        arm.arm: 100 * (arm.figures.peak_memory_bytes / one.peak_bytes - 1)
        for arm, one in found
        if arm.figures.peak_memory_bytes is not None and one.peak_bytes is not None
    }
    yield _worst("recipe, peak memory of the suite against the loop by hand", 1.0, peaks)


def _share(results: Results) -> Aim:
    what, aim = "recipe, share of its roofline", "75 % in every mode"
    shares = {arm.arm: arm.share_pct for arm in arms_of(results.of("recipe")) if arm.share_pct is not None}
    if not shares:
        return Aim(what, aim)
    text = ", ".join(f"{arm} {percent(share)}" for arm, share in shares.items())
    return Aim(what, aim, text, min(shares.values()) >= 75)


def _tokens(results: Results) -> Iterator[Aim]:
    pairs = nanogpt_pairs(results)
    ours = [value for _, suite, _ in pairs if suite and (value := suite.median("perf/tokens_per_sec")) is not None]
    both = [
        (value, by_hand.tokens_per_sec)
        for _, suite, by_hand in pairs
        if suite and by_hand and by_hand.tokens_per_sec and (value := suite.median("perf/tokens_per_sec")) is not None
    ]
    what = "GPT-2 124M in bfloat16, compiled, tokens/s"
    if both:
        text = "; ".join(f"{thousands(one)} against {thousands(other)}" for one, other in both)
        yield Aim(what, "at least nanoGPT's", text, all(one >= other for one, other in both))
    else:
        yield Aim(what, "at least nanoGPT's")
    yield Aim(what, "600,000", thousands(max(ours)), max(ours) >= 600_000) if ours else Aim(what, "600,000")


def _predicted(results: Results, model: str, limit_pct: float) -> Aim:
    experiments = ("recipe", "gpt_small", "resnet50", "memory_by_batch")
    records = [record for experiment in experiments for _, record in results.of(experiment, model=model, compile=False)]
    made = [record.prediction for record in records if record.status == "completed"]
    errors = [one.error_pct for one in made if one is not None and one.error_pct is not None]
    what, aim = f"{model}, predicted peak memory against the measured", f"within {limit_pct:g} %"
    if not errors:
        return Aim(what, aim)
    worst = max(errors, key=abs)
    return Aim(what, aim, f"{worst:+.2f}% at most (n={len(errors)})", abs(worst) <= limit_pct)


def _overhead(results: Results) -> Aim:
    what, aim = "instrumentation, share of the step time", "at most 0.5 %"
    shares = {
        f"{experiment} {arm.arm}": share
        for experiment, facts in WORKLOADS
        for arm in arms_of(results.of(experiment, **facts))
        if (share := arm.median("instrumentation/overhead_pct")) is not None
    }
    if not shares:
        return Aim(what, aim)
    worst = max(shares, key=lambda name: shares[name])
    return Aim(what, aim, f"{percent(shares[worst])} at most ({worst})", shares[worst] <= 0.5)


def _tests(results: Results) -> Iterator[Aim]:
    outcomes = results.ledger.tests.outcomes if results.ledger.tests else {}
    ran = {name: outcome for name, outcome in outcomes.items() if not outcome.startswith("skipped")}
    waits = [outcome for name, outcome in ran.items() if NO_WAITING_TEST in name]
    what = "waits for the device between two flushes"
    passed = sum(outcome == "passed" for outcome in waits)
    yield (
        Aim(what, "none", f"{passed} of {len(waits)} tests pass", passed == len(waits)) if waits else Aim(what, "none")
    )
    passed = sum(outcome == "passed" for outcome in ran.values())
    what, aim = "the suite's tests on the GPU", "all pass"
    yield Aim(what, aim, f"{passed} of {len(ran)}", passed == len(ran)) if ran else Aim(what, aim)


def _worst(what: str, limit_pct: float, differences: dict[str, float]) -> Aim:
    aim = f"within {limit_pct:g} %"
    if not differences:
        return Aim(what, aim)
    arm = max(differences, key=lambda name: abs(differences[name]))
    return Aim(what, aim, f"{differences[arm]:+.2f}% at most ({arm})", abs(differences[arm]) <= limit_pct)
