"""Signs that a workload is too small for its figures to hold for larger ones."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.arms import PEAK_MEMORY, STEP_MS
from ampsweep.analysis.runs import Run
from ampsweep.text import GIB

NUM_OPERATORS: Final = "num_operators"
"""Key of the record's proof: aten operators dispatched in the traced step."""

MIN_US_PER_OPERATOR_CPU: Final = 50.0
"""An eager step on vanishing tensors costs 5 us an operator on a CPU (GPT of 2 layers of width 8, forward, backward and
fused AdamW: 221 operators in 1.15 ms, torch 2.13). Under ten times that, a tenth of the step or more is overhead."""
MIN_US_PER_OPERATOR_ACCELERATOR: Final = 20.0
"""A host needs 5 to 10 us to launch an operator's kernel. Under about twice that, the device waits for the host, and
what precision changes on the device hardly shows in the step."""
MIN_PEAK_BYTES: Final = 64 * 2**20
"""Below this, fixed buffers and the rounding of allocations weigh against the tensors whose size precision changes."""


@dataclass(frozen=True, kw_only=True)
class SmallStep:
    """A step too short for its number of operators: launching them counts, so it is too small to judge speed by."""

    num_operators: int
    step_ms: float
    us_per_operator: float
    min_us_per_operator: float


@dataclass(frozen=True, kw_only=True)
class SmallPeak:
    """A peak too small for the memory figures to carry over, under `MIN_PEAK_BYTES`."""

    peak_bytes: float


SizeCaution = SmallStep | SmallPeak


def size_cautions(baseline_runs: Sequence[Run]) -> tuple[SizeCaution, ...]:
    """The signs that the workload is too small, judged by its measured baseline runs.

    A fact that the records lack gives no caution. A compiled step runs fused kernels, so its number of (eager)
    operators says nothing about its speed.
    """
    cautions = (small_step(baseline_runs), small_peak(baseline_runs))
    return tuple(caution for caution in cautions if caution is not None)


def small_step(baseline_runs: Sequence[Run]) -> SmallStep | None:
    """The sign that the workload is too small to judge speed by; None if there is none."""
    known = [
        (step_ms, operators)
        for run in baseline_runs
        if run.measured
        and not run.record.identity.compile
        and (step_ms := run.figure(STEP_MS)) is not None
        and (operators := run.record.proof.num_operators) is not None
        and operators > 0
    ]
    if not known:
        return None
    step_ms = statistics.median(step_ms for step_ms, _ in known)
    operators = round(statistics.median(operators for _, operators in known))
    us_each = 1000 * step_ms / operators
    on_cpu = baseline_runs[0].record.identity.device.startswith("cpu")
    least = MIN_US_PER_OPERATOR_CPU if on_cpu else MIN_US_PER_OPERATOR_ACCELERATOR
    if us_each >= least:
        return None
    return SmallStep(num_operators=operators, step_ms=step_ms, us_per_operator=us_each, min_us_per_operator=least)


def small_peak(baseline_runs: Sequence[Run]) -> SmallPeak | None:
    """The sign that the workload is too small to judge memory by; None if there is none."""
    peaks = [peak * GIB for run in baseline_runs if run.measured and (peak := run.figure(PEAK_MEMORY)) is not None]
    median = statistics.median(peaks) if peaks else None
    return None if median is None or median >= MIN_PEAK_BYTES else SmallPeak(peak_bytes=median)
