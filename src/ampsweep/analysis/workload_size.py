"""Whether a workload is large enough for its figures to say anything about larger ones."""

import statistics
from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.arms import PEAK_MEMORY, STEP_MS
from ampsweep.analysis.runs import GIB, Run
from ampsweep.text import num_bytes, number

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


def size_cautions(baseline_runs: Sequence[Run]) -> tuple[str, ...]:
    """What is too small about the workload, judged by its measured baseline runs; each with its evidence.

    A fact that the records lack gives no caution. A compiled step runs fused kernels, so its number of (eager)
    operators says nothing about its speed.
    """
    cautions = [speed_caution(baseline_runs), memory_caution(baseline_runs)]
    return tuple(caution for caution in cautions if caution is not None)


def speed_caution(baseline_runs: Sequence[Run]) -> str | None:
    """Why the workload is too small to judge speed by, with its evidence; None where nothing says that it is."""
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
    return (
        f"the workload is too small to judge speed by ({operators} operators in {number(step_ms)} ms, "
        f"{number(us_each, 2)} us each: under {least:.0f} us, launching them counts)"
    )


def memory_caution(baseline_runs: Sequence[Run]) -> str | None:
    """Why the workload is too small to judge memory by, with its evidence; None where nothing says that it is."""
    peaks = [peak * GIB for run in baseline_runs if run.measured and (peak := run.figure(PEAK_MEMORY)) is not None]
    if not peaks:
        return None
    median = statistics.median(peaks)
    if median >= MIN_PEAK_BYTES:
        return None
    return (
        f"a peak of {num_bytes(median)} is too small for the memory figures to carry over (under "
        f"{num_bytes(MIN_PEAK_BYTES)})"
    )
