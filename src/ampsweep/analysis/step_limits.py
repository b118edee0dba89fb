"""Limits of a step that precision does not move: launching operators, waiting for data, a host that keeps the device
waiting.

Each arm is judged by its own runs: half precision shortens the arithmetic of a step and adds operators to it, so that
its step may be limited where the baseline's is not.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.runs import STEP_MS, Run

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


@dataclass(frozen=True, kw_only=True)
class SmallStep:
    """A step too short for its operators: launching them counts, by the time it takes or else by their number."""

    kind: Literal["launching"] = "launching"
    step_ms: float
    launch_ms: float | None = None
    num_operators: int | None = None
    us_per_operator: float | None = None
    min_us_per_operator: float | None = None
    """The threshold; None where the measured `launch_ms` decides."""


@dataclass(frozen=True, kw_only=True)
class WaitForData:
    """Steps that wait for their data for long, on average. A few may wait for many: the mean may exceed the median."""

    kind: Literal["data"] = "data"
    wait_ms: float
    """Mean over steps."""
    step_ms: float
    """Median over steps."""

    @property
    def share_pct(self) -> float:
        return 100 * self.wait_ms / self.step_ms


@dataclass(frozen=True, kw_only=True)
class IdleDevice:
    """A step in which the accelerator had nothing to do for a good part, for no reason that the other kinds name."""

    kind: Literal["host"] = "host"
    idle_pct: float


StepLimit = SmallStep | WaitForData | IdleDevice


def step_limits(runs: Sequence[Run]) -> tuple[StepLimit, ...]:
    """The limits of one arm's step, by its measured `runs`; a fact that the records lack shows none.

    Of an arm of contaminated runs only launching is told: another's load makes a step longer, not shorter. On an
    accelerator the host may wait for data while the device computes: that is no limit where the device is known to have
    been busy.
    """
    return tuple(_limits(runs, [run for run in runs if run.measured and run.contamination is None]))


def operator_time(runs: Sequence[Run]) -> tuple[int, float, float] | None:
    """Number of operators of a step, ms of a step and us an operator, medians over the measured `runs` of one arm.

    None where the records lack either. A compiled step runs fused kernels, so its number of (eager) operators says
    nothing about its speed.
    """
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
    step_ms = statistics.median(step_ms for step_ms, _ in known)
    operators = round(statistics.median(operators for _, operators in known))
    return operators, step_ms, 1000 * step_ms / operators


def small_step(runs: Sequence[Run]) -> SmallStep | None:
    """The sign that launching operators limits the step of `runs`, all of one arm; None if there is none.

    The time that the host takes to launch a step decides where it was measured, as it is that of this host; elsewhere
    the time of a step for each of its operators does.
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
    known = [value for run in runs if (value := run.figure(key)) is not None]
    return statistics.median(known) if known else None
