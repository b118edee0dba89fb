"""What limits a step apart from precision: launching operators, waiting for data, a slow host."""

from collections.abc import Sequence
from statistics import median
from typing import ClassVar, Final

from ampsweep.analysis.runs import STEP_MS, Run
from ampsweep.analysis.statistics import known_median
from ampsweep.finding import Finding
from ampsweep.text import milliseconds, num_bytes, number

MIN_US_PER_OPERATOR_CPU: Final = 50.0
"""An eager step on tiny tensors costs 5 us per operator on a CPU (GPT of 2 layers of width 8, forward, backward and
fused AdamW: 221 operators in 1.15 ms, torch 2.13). Below ten times that, at least a tenth of the step is overhead."""
MIN_US_PER_OPERATOR_ACCELERATOR: Final = 20.0  # twice the 5 to 10 us in which a host launches a kernel
MIN_WAIT_SHARE: Final = 0.1  # smallest share of a step spent waiting for data that counts
MIN_UTILIZATION_PCT: Final = 80.0  # percent of samples with a running kernel, below which the device certainly waited
MIN_LAUNCH_SHARE: Final = 0.9  # share of a step (on an idle device) for launching it, from which the host sets the pace
MAX_LAG_SHARE: Final = 0.05
"""Share of a step that the device lags behind the host at its end, from which the device is busy after all: a host
waits once the queue of about a thousand kernels is full."""
MIN_PEAK_BYTES: Final = 64 * 2**20  # below, fixed buffers and rounding outweigh the tensors that precision shrinks
_LEAST: Final = num_bytes(MIN_PEAK_BYTES)


class StepLimit(Finding):
    """A limit of a step; the sentence has its figure: 'launching operators, 8.0 us each'."""

    without: ClassVar[str] = "without that"


class SmallStep(StepLimit):
    severity = "warning"
    without = "at a larger size"
    step_ms: float
    launch_ms: float | None = None
    num_operators: int | None = None
    us_per_operator: float | None = None
    min_us_per_operator: float | None = None  # the threshold; None if the measured `launch_ms` decides

    @property
    def sentence(self) -> str:
        if self.launch_ms is not None:
            return f"launching operators, {milliseconds(self.launch_ms)} of a step of {milliseconds(self.step_ms)}"
        return f"launching operators, {number(self.us_per_operator or 0, 2)} us each"


class WaitForData(StepLimit):
    wait_ms: float  # mean over steps, may exceed the median `step_ms`
    step_ms: float

    @property
    def sentence(self) -> str:
        share_pct = 100 * self.wait_ms / self.step_ms
        share = f", {share_pct:.0f}% of it" if share_pct <= 100 else ""
        return f"waiting for data, {milliseconds(self.wait_ms)} a step on average{share}"


class IdleDevice(StepLimit):
    template = "the host, as no kernel ran in {idle_pct:.0f}% of the time"
    idle_pct: float


class LimitedArm(Finding):
    template = "a step of {arm} is limited by {limit.sentence}: {limit.without} speeds may differ"
    arm: str
    limit: StepLimit


class SmallPeak(Finding):
    severity = "warning"
    template = f"the peak of {{arm}}, {{peak_bytes:bytes}}, is below {_LEAST}: at a larger size savings may differ"
    arm: str
    peak_bytes: float


def limits_text(limits: Sequence[StepLimit]) -> str:
    return " and ".join(limit.sentence for limit in limits)


def step_limits(runs: Sequence[Run]) -> tuple[StepLimit, ...]:
    """Contaminated runs count for launching only, since other load makes a step longer, not shorter."""
    undisturbed = [run for run in runs if run.measured and run.contamination is None]
    on_accelerator = any(not run.record.identity.device.startswith("cpu") for run in undisturbed)
    utilization = _median(undisturbed, "device/utilization_pct") if on_accelerator else None
    wait_ms, step_ms = _median(undisturbed, "perf/data_wait_ms"), _median(undisturbed, STEP_MS)
    launching = small_step(runs)
    found: list[StepLimit] = [] if launching is None else [launching]
    if utilization is not None and utilization >= MIN_UTILIZATION_PCT:
        return tuple(found)
    if wait_ms is not None and step_ms is not None and wait_ms >= MIN_WAIT_SHARE * step_ms:
        found.append(WaitForData(wait_ms=wait_ms, step_ms=step_ms))
    if utilization is not None and not found:
        found.append(IdleDevice(idle_pct=100 - utilization))
    return tuple(found)


def operator_time(runs: Sequence[Run]) -> tuple[int, float, float] | None:
    """Operators of a step, ms of a step and us per operator: medians over the measured eager `runs`."""
    known = [
        (step_ms, operators)
        for run in _timed_runs(runs)
        if not run.record.identity.compile
        and (step_ms := run.figure(STEP_MS)) is not None
        and (operators := run.record.proof.num_operators) is not None
        and operators > 0
    ]
    if not known:
        return None
    step_ms = median(step_ms for step_ms, _ in known)
    operators = round(median(operators for _, operators in known))
    return operators, step_ms, 1000 * step_ms / operators


def small_step(runs: Sequence[Run]) -> SmallStep | None:
    operators, step_ms, us_each = operator_time(runs) or (None, None, None)
    measured = ("perf/launch_ms", STEP_MS, "perf/device_lag_ms")
    launch_ms, median_ms, lag_ms = (_median(_timed_runs(runs), key) for key in measured)
    if launch_ms is not None and median_ms is not None:
        if launch_ms < MIN_LAUNCH_SHARE * median_ms or (lag_ms or 0.0) >= MAX_LAG_SHARE * median_ms:
            return None
        return SmallStep(step_ms=median_ms, launch_ms=launch_ms, num_operators=operators, us_per_operator=us_each)
    if step_ms is None or us_each is None:
        return None
    on_cpu = runs[0].record.identity.device.startswith("cpu")
    least = MIN_US_PER_OPERATOR_CPU if on_cpu else MIN_US_PER_OPERATOR_ACCELERATOR
    if us_each >= least:
        return None
    return SmallStep(step_ms=step_ms, num_operators=operators, us_per_operator=us_each, min_us_per_operator=least)


def _timed_runs(runs: Sequence[Run]) -> list[Run]:
    measured = [run for run in runs if run.measured]
    return [run for run in measured if run.contamination is None] or measured


def _median(runs: Sequence[Run], key: str) -> float | None:
    return known_median(run.figure(key) for run in runs)
