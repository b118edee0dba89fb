"""The aims of the results, and whether they were reached."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ampsweep.text import percent, ratio
from campaign.results import Arm, Results
from campaign.tables import signed_percent, thousands

NO_WAITING_TEST: Final = "test_on_cuda_only_a_scaler_waits_between_two_flushes"

Named = Iterable[tuple[str, float | None]]
"""Figures, each with the name of what it measures; None if it was not measured."""


@dataclass(frozen=True)
class Aim:
    """One line of the table; where nothing was measured, `measured` and `reached` are None."""

    what: str
    aim: str
    measured: str | None = None
    reached: bool | None = None


def aims(results: Results) -> Iterator[Aim]:
    """All aims, as lines of the table."""
    recipe = _arms(results, "recipe")
    times = [(arm.name, one.against.value) for arm in recipe if (one := arm.by_hand) is not None and one.against]
    yield _within(1.0, "recipe, step time of the suite against the loop by hand", _differences(times))
    peaks = [(arm.name, arm.peak_over_by_hand) for arm in recipe]
    yield _within(1.0, "recipe, peak memory of the suite against the loop by hand", _differences(peaks))
    shares = [(arm.name, arm.share_pct) for arm in recipe]
    yield _worst("recipe, share of its roofline", "75 % in every mode", shares, lambda share: share - 75, percent)
    compiled = [arm for arm in _arms(results, "nanogpt", compiled=True) if arm.name == "amp_bf16"]
    speeds = [(arm.name, arm.median("perf/tokens_per_sec")) for arm in compiled]
    what = "GPT-2 124M in bfloat16, compiled, tokens/s"
    yield _worst(what, "600,000", speeds, lambda speed: speed - 600_000, thousands)
    speedups = [(arm.name, 1 / one.against.value) for arm in compiled if (one := arm.by_hand) and one.against]
    yield _worst("its speed over that of nanoGPT's own", "at least 1x", speedups, lambda value: value - 1, ratio)
    for model, limit_pct in (("mlp_recipe", 1.0), ("gpt_small", 1.0), ("resnet50", 3.0)):
        yield _within(limit_pct, f"{model}, predicted peak memory against the measured", _errors(results, model))
    overhead = [
        (f"{experiment} {arm.name}", arm.median("instrumentation/overhead_pct"))
        for experiment in ("recipe", "gpt_small", "nanogpt", "resnet50")
        for arm in _arms(results, experiment)
    ]
    what = "instrumentation, share of the step time"
    yield _worst(what, "at most 0.5 %", overhead, lambda share: 0.5 - share, percent)
    ran = [line for line in results.tests[:-1] if not line.startswith("SKIPPED")]
    yield _passed("waits for the device between two flushes", "none", [line for line in ran if NO_WAITING_TEST in line])
    yield _passed("the suite's tests on the GPU", "all pass", ran)


def _arms(results: Results, experiment: str, *, compiled: bool = False) -> list[Arm]:
    """The arms of all workloads of an experiment, or of the compiled ones only."""
    workloads = [one for one in results.workloads(experiment) if not compiled or one.record.identity.compile]
    return [arm for workload in workloads for arm in workload.arms]


def _errors(results: Results, model: str) -> Named:
    """Errors of the predictions for a model's eager runs."""
    for record in results.records:
        identity, prediction = record.identity, record.prediction
        if identity.model == model and not identity.compile:
            yield f"{record.arm}, batch {identity.batch_size}", None if prediction is None else prediction.error_pct


def _differences(ratios: Named) -> Named:
    """Differences of ratios from 1, in percent."""
    return [(name, None if value is None else 100 * (value - 1)) for name, value in ratios]


def _within(limit_pct: float, what: str, differences: Named) -> Aim:
    return _worst(what, f"within {limit_pct:g} %", differences, lambda value: limit_pct - abs(value), signed_percent)


def _worst(what: str, aim: str, figures: Named, margin: Callable[[float], float], form: Callable[[float], str]) -> Aim:
    """The figure with the smallest margin; a negative margin misses the aim."""
    known = [(name, value) for name, value in figures if value is not None]
    if not known:
        return Aim(what, aim)
    name, worst = min(known, key=lambda one: margin(one[1]))
    return Aim(what, aim, f"{form(worst)} ({name}, the worst of {len(known)})", margin(worst) >= 0)


def _passed(what: str, aim: str, lines: list[str]) -> Aim:
    passed = sum(line.startswith("PASSED") for line in lines)
    return Aim(what, aim, f"{passed} of {len(lines)} pass", passed == len(lines)) if lines else Aim(what, aim)
