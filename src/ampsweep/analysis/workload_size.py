"""Signs that the figures of a workload do not hold for larger ones, or its speeds not for its arithmetic."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.runs import PEAK_MEMORY, Run
from ampsweep.analysis.step_limits import StepLimit, step_limits
from ampsweep.text import GIB

MIN_PEAK_BYTES: Final = 64 * 2**20
"""Below this, fixed buffers and the rounding of allocations weigh against the tensors whose size precision changes."""


@dataclass(frozen=True, kw_only=True)
class SmallPeak:
    """A peak too small for the memory figures to carry over, under `MIN_PEAK_BYTES`."""

    peak_bytes: float


Caution = StepLimit | SmallPeak


def cautions(baseline_runs: Sequence[Run]) -> tuple[Caution, ...]:
    """The limits of the measured baseline's step, which bear on every speedup, and the sign of a small peak.

    A fact that the records lack gives no caution.
    """
    peak = small_peak(baseline_runs)
    return (*step_limits(baseline_runs), *(() if peak is None else (peak,)))


def small_peak(baseline_runs: Sequence[Run]) -> SmallPeak | None:
    """The sign that the workload is too small to judge memory by; None if there is none."""
    peaks = [peak * GIB for run in baseline_runs if run.measured and (peak := run.figure(PEAK_MEMORY)) is not None]
    median = statistics.median(peaks) if peaks else None
    return None if median is None or median >= MIN_PEAK_BYTES else SmallPeak(peak_bytes=median)
