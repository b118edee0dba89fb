"""The tables of the page as Markdown: columns of figures, with one row per arm."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ampsweep.metrics import METRICS
from ampsweep.report.arm_table import arms_tables
from ampsweep.report.tables import ABSENT, quantity
from ampsweep.text import milliseconds, num_bytes, number, percent, ratio
from campaign.results import Arm, Workload

Cell = Callable[[Arm], str | None]
"""A function from an arm to the text of its cell in a column; None if it was not measured."""


def told(form: Callable[[float], str], value: float | None) -> str | None:
    """A figure in its form; one that was not measured stays apart from zero."""
    return None if value is None else form(value)


def thousands(value: float) -> str:
    return f"{value:,.0f}"


def signed_percent(value: float) -> str:
    return f"{value:+.2f}%"


def table(headers: Sequence[str], rows: Iterable[Sequence[str | None]], *, words: bool = False) -> list[str]:
    """The first column to the left, figures to the right, words to the left."""
    rule = ["---", *("---" if words else "---:" for _ in headers[1:])]
    return [f"| {' | '.join(cell or ABSENT for cell in cells)} |" for cells in [headers, rule, *rows]] + [""]


def compared_table(workload: Workload) -> list[str]:
    """The table of `ampsweep report`: speed, memory and loss against the baseline."""
    shown = arms_tables(workload.comparison)[0].shown()
    cells = [[f"{cell.text} {cell.detail}".strip() for cell in row.cells] for row in shown.rows]
    return table([column.title for column in shown.columns], cells)


def arms_table(workload: Workload, columns: dict[str, Cell]) -> list[str]:
    """Columns by header; those in which no arm has a figure are left out, and with them the table."""
    cells = {header: [cell(arm) for arm in workload.arms] for header, cell in columns.items()}
    shown = [header for header, column in cells.items() if any(column)]
    rows = [[arm.name, *(cells[header][index] for header in shown)] for index, arm in enumerate(workload.arms)]
    return table(["arm", *shown], rows) if shown else []


def bounds_against(workload: Workload, baseline: str) -> list[str]:
    """A line on the largest gain that is possible for each arm: the baseline's bound over the arm's."""
    bounds = {arm.name: arm.least_ms for arm in workload.arms if arm.least_ms is not None}
    if baseline not in bounds:
        return []
    found = [f"{name} {ratio(bounds[baseline] / ms)}" for name, ms in bounds.items() if name != baseline]
    return (
        [f"By their bounds the arms can be faster than {baseline} by at most: {', '.join(found)}.", ""] if found else []
    )


def _metric(key: str) -> Cell:
    unit = METRICS[key].unit
    return lambda arm: told(thousands if unit == "1/s" else lambda value: quantity(value, unit), arm.median(key))


def _by_hand(form: Callable[[float], str], key: str) -> Cell:
    return lambda arm: None if arm.by_hand is None else told(form, arm.by_hand.median(key))


def _gflop(arm: Arm) -> str | None:
    flops = next((flops for run in arm.runs if (flops := run.record.proof.flops)), None)
    return None if flops is None else number(sum(flops.values()) / 1e9, 4)


def _difference(of: float) -> str:
    return signed_percent(100 * (of - 1))


FIGURES: Final[dict[str, Cell]] = {
    "undisturbed": lambda arm: str(len(arm.undisturbed)) if arm.undisturbed else None,
    "tokens/s": _metric("perf/tokens_per_sec"),
    "samples/s": _metric("perf/samples_per_sec"),
    "TFLOP/s": _metric("perf/tflops_per_sec"),
    "MFU": _metric("perf/mfu_pct"),
    "reserved": _metric("memory/peak_reserved_gib"),
}
PREDICTED: Final[dict[str, Cell]] = {
    "predicted peak": lambda arm: told(num_bytes, arm.figures.predicted_memory_bytes),
    "error": lambda arm: told(signed_percent, arm.figures.prediction_error_pct),
    "predicted step": lambda arm: told(milliseconds, arm.figures.predicted_step_ms),
    "its error": lambda arm: told(signed_percent, arm.figures.step_error_pct),
    "GFLOP a step": _gflop,
    "bound": lambda arm: told(milliseconds, arm.least_ms),
    "share of bound": lambda arm: told(percent, arm.share_pct),
}
DEVICE: Final[dict[str, Cell]] = {
    "utilization": _metric("device/utilization_pct"),
    "power": _metric("device/power_w"),
    "energy a sample": _metric("device/energy_per_sample_j"),
    "clock": _metric("device/clock_mhz"),
    "temperature": _metric("device/temperature_c"),
    "power cap held": _metric("device/power_capped_pct"),
    "slowed by heat": _metric("device/throttled_pct"),
}
BESIDE: Final[dict[str, Cell]] = {
    "n": lambda arm: None if arm.by_hand is None else f"{len(arm.undisturbed)}, {len(arm.by_hand.rows)}",
    "step": lambda arm: told(milliseconds, arm.figures.step_ms),
    "by hand": _by_hand(milliseconds, "step_ms"),
    "ratio [95 %]": lambda arm: None if arm.by_hand is None or not (one := arm.by_hand.against) else one.ratio_text,
    "by the wall": lambda arm: told(milliseconds, arm.wall_ms),
    "wall by hand": _by_hand(milliseconds, "wall_ms"),
    "difference": lambda arm: told(_difference, arm.wall_over_by_hand),
    "reported overhead": _metric("instrumentation/overhead_pct"),
    "peak": lambda arm: told(num_bytes, arm.figures.peak_memory_bytes),
    "peak by hand": _by_hand(num_bytes, "peak_bytes"),
    "peaks' difference": lambda arm: told(_difference, arm.peak_over_by_hand),
}
