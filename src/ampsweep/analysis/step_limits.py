"""Limits of a step that precision does not move: launching operators, waiting for data, a slow host."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from ampsweep.analysis.runs import PEAK_MEMORY, STEP_MS, Run
from ampsweep.analysis.statistics import known_median
from ampsweep.finding import Finding
from ampsweep.text import milliseconds, num_bytes, number

DATA_WAIT_MS: Final = "perf/data_wait_ms"
LAUNCH_MS: Final = "perf/launch_ms"
DEVICE_LAG_MS: Final = "perf/device_lag_ms"
UTILIZATION_PCT: Final = "device/utilization_pct"

MIN_US_PER_OPERATOR_CPU: Final = 50.0
"""An eager step on vanishing tensors costs 5 us an operator on a CPU (GPT of 2 layers of width 8, forward, backward and
fused AdamW: 221 operators in 1.15 ms, torch 2.13). Under ten times that, a tenth of the step or more is overhead."""
MIN_US_PER_OPERATOR_ACCELERATOR: Final = 20.0
"""A host needs 5 to 10 us to launch an operator's kernel. Under about twice that, the device waits for the host, and
what precision changes on the device hardly shows in the step."""
MIN_WAIT_SHARE: Final = 0.1
"""Share of a step spent on waiting for data from which it counts."""
MIN_UTILIZATION_PCT: Final = 80.0
"""Percent of samples in which any kernel ran: below this the device certainly waited, above it may have."""
MIN_LAUNCH_SHARE: Final = 0.9
"""Share of a step that the host takes to launch it (measured on an idle device), from which it is the host's time."""
MAX_LAG_SHARE: Final = 0.05
"""Share of a step by which the device is behind the host at its end, from which the device is busy all the same: a host
that launches more kernels than the queue holds, about a thousand, waits for the device to take them."""
MIN_PEAK_BYTES: Final = 64 * 2**20
"""Below this, fixed buffers and the rounding of allocations weigh against the tensors whose size precision changes."""
_LEAST: Final = num_bytes(MIN_PEAK_BYTES)
TOO_SMALL: Final = "the workload is too small to judge speed by"


class StepLimit(Finding):
    """A limit of a step; the sentence names it with its figure: 'launching operators, 8.0 us each'."""

    @property
    def of_baseline(self) -> str:
        return f"the baseline's own step is limited by {self.sentence}"


class SmallStep(StepLimit):
    """A step limited by launching its operators, by the time that takes or else by their number."""

    severity = "warning"

    step_ms: float
    launch_ms: float | None = None
    num_operators: int | None = None
    us_per_operator: float | None = None
    min_us_per_operator: float | None = None
    """The threshold; None where the measured `launch_ms` decides."""

    @property
    def sentence(self) -> str:
        if self.launch_ms is not None:
            return f"launching operators, {milliseconds(self.launch_ms)} of a step of {milliseconds(self.step_ms)}"
        return f"launching operators, {number(self.us_per_operator or 0, 2)} us each"

    @property
    def of_baseline(self) -> str:
        if self.launch_ms is not None:
            number_of = "" if self.num_operators is None else f"{self.num_operators} "
            launching = f"launching its {number_of}operators takes the host {milliseconds(self.launch_ms)}"
            return f"{TOO_SMALL} ({launching} of a step of {milliseconds(self.step_ms)})"
        each = f"{number(self.us_per_operator or 0, 2)} us each: under {self.min_us_per_operator or 0:.0f} us"
        operators = f"{self.num_operators} operators in {number(self.step_ms)} ms"
        return f"{TOO_SMALL} ({operators}, {each}, launching them counts)"


class WaitForData(StepLimit):
    wait_ms: float
    """Mean over steps, which may exceed the median `step_ms`."""
    step_ms: float

    @property
    def sentence(self) -> str:
        share_pct = 100 * self.wait_ms / self.step_ms
        share = f", {share_pct:.0f}% of it" if share_pct <= 100 else ""
        return f"waiting for data, {milliseconds(self.wait_ms)} a step on average{share}"


class IdleDevice(StepLimit):
    """An accelerator without work for a good part of the step, for no reason that the other kinds name."""

    template = "the host, as no kernel ran in {idle_pct:.0f}% of the time"

    idle_pct: float


class LimitedBaseline(Finding):
    template = "{limit.of_baseline}"

    limit: StepLimit


class SmallPeak(Finding):
    severity = "warning"
    template = f"a peak of {{peak_bytes:bytes}} is too small for the memory figures to carry over (under {_LEAST})"

    peak_bytes: float


def limits_text(limits: Sequence[StepLimit]) -> str:
    return " and ".join(limit.sentence for limit in limits)


def cautions(baseline_runs: Sequence[Run]) -> tuple[Finding, ...]:
    """Signs that the figures of a workload do not hold for larger ones, or its speeds not for its arithmetic."""
    found: list[Finding] = [LimitedBaseline(limit=limit) for limit in step_limits(baseline_runs)]
    peak_bytes = known_median(run.num_bytes(PEAK_MEMORY) for run in baseline_runs if run.measured)
    if peak_bytes is not None and peak_bytes < MIN_PEAK_BYTES:
        found.append(SmallPeak(peak_bytes=peak_bytes))
    return tuple(found)


def step_limits(runs: Sequence[Run]) -> tuple[StepLimit, ...]:
    """The limits of one arm's step, by its measured `runs`.

    Of contaminated runs only launching is one: another's load makes a step longer, not shorter. Waiting for data is
    none where an accelerator is known to have been busy meanwhile.
    """
    return tuple(_limits(runs, [run for run in runs if run.measured and run.contamination is None]))


def operator_time(runs: Sequence[Run]) -> tuple[int, float, float] | None:
    """Number of operators of a step, ms of a step and us an operator, medians over the measured eager `runs`."""
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
    """The sign that launching operators limits the step of `runs`, all of one arm.

    The time that the host takes to launch a step decides if it was measured, else that of a step over its operators.
    """
    operators, step_ms, us_each = operator_time(runs) or (None, None, None)
    launch_ms, median_ms = _median(_timed_runs(runs), LAUNCH_MS), _median(_timed_runs(runs), STEP_MS)
    if launch_ms is not None and median_ms is not None:
        lag_ms = _median(_timed_runs(runs), DEVICE_LAG_MS) or 0.0
        if launch_ms < MIN_LAUNCH_SHARE * median_ms or lag_ms >= MAX_LAG_SHARE * median_ms:
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


def _limits(runs: Sequence[Run], undisturbed: Sequence[Run]) -> Iterator[StepLimit]:
    on_accelerator = any(not run.record.identity.device.startswith("cpu") for run in undisturbed)
    utilization = _median(undisturbed, UTILIZATION_PCT) if on_accelerator else None
    is_busy = utilization is not None and utilization >= MIN_UTILIZATION_PCT
    launching, data = small_step(runs), _wait_for_data(undisturbed)
    if launching is not None:
        yield launching
    if data is not None and not is_busy:
        yield data
    if utilization is not None and not is_busy and launching is None and data is None:
        yield IdleDevice(idle_pct=100 - utilization)


def _wait_for_data(runs: Sequence[Run]) -> WaitForData | None:
    wait_ms, step_ms = _median(runs, DATA_WAIT_MS), _median(runs, STEP_MS)
    if wait_ms is None or step_ms is None or wait_ms < MIN_WAIT_SHARE * step_ms:
        return None
    return WaitForData(wait_ms=wait_ms, step_ms=step_ms)


def _median(runs: Sequence[Run], key: str) -> float | None:
    return known_median(run.figure(key) for run in runs)
