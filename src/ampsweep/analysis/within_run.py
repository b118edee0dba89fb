"""How the steps of a run spread: all that is known of a speed's uncertainty while there are too few runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.runs import Run
from ampsweep.text import milliseconds, percent, plural

_KEYS: Final = ("perf/step_ms", "perf/step_ms_iqr", "perf/step_ms_p95")


@dataclass(frozen=True, kw_only=True)
class WithinRun:
    """Spread of the steps after warm-up, medians over the runs.

    It says nothing of how far another run would be from these, so no interval and no verdict is made of it.
    """

    num_runs: int
    step_ms: float
    step_ms_iqr: float
    step_ms_p95: float

    @property
    def text(self) -> str:
        share = percent(100 * self.step_ms_iqr / self.step_ms)
        return (
            f"step time within {plural(self.num_runs, 'run')}: IQR {milliseconds(self.step_ms_iqr)} ({share}), "
            f"p95 {milliseconds(self.step_ms_p95)}; it supports no verdict"
        )


def within_run(runs: Sequence[Run]) -> WithinRun | None:
    """The spread within `runs`, uncontaminated ones of one arm; None where they do not tell."""
    figures = [[value for key in _KEYS if (value := run.figure(key)) is not None] for run in runs]
    found = [of_run for of_run in figures if len(of_run) == len(_KEYS) and of_run[0] > 0]
    if not found:
        return None
    step_ms, iqr, p95 = (statistics.median(column) for column in zip(*found, strict=True))
    return WithinRun(num_runs=len(found), step_ms=step_ms, step_ms_iqr=iqr, step_ms_p95=p95)
