"""The tables of the page: columns of figures about arms, a row an arm, as Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.estimate_text import estimate, ratio_figure
from ampsweep.analysis.statistics import Estimate
from ampsweep.metrics import METRICS
from ampsweep.report.columns import ABSENT
from ampsweep.report.units import quantity
from ampsweep.text import milliseconds, num_bytes, number, percent, ratio
from campaign.results import Arm, Workload
from campaign.roofline import Bound, Moved


@dataclass(frozen=True)
class Column:
    """A column: its header, and an arm's cell in it; None where there is nothing to say."""

    header: str
    cell: Callable[[Arm], str | None]


def told(form: Callable[[float], str], value: float | None) -> str | None:
    """A figure in its form; one that was not measured stays apart from zero."""
    return None if value is None else form(value)


def thousands(value: float) -> str:
    return f"{value:,.0f}"


def signed_percent(value: float) -> str:
    return f"{value:+.2f}%"


def table(headers: Sequence[str], rows: Iterable[Sequence[str | None]]) -> list[str]:
    """The first column to the left, all others to the right."""
    rule = ["---", *("---:" for _ in headers[1:])]
    return [f"| {' | '.join(cell or ABSENT for cell in cells)} |" for cells in [headers, rule, *rows]] + [""]


def arms_table(workload: Workload, columns: Sequence[Column]) -> list[str]:
    """A row an arm; columns in which no arm has a figure are left out, and with them the table."""
    cells = {column.header: [column.cell(arm) for arm in workload.arms] for column in columns}
    shown = [header for header, column in cells.items() if any(column)]
    rows = [[arm.name, *(cells[header][index] for header in shown)] for index, arm in enumerate(workload.arms)]
    return table(["arm", *shown], rows) if shown else []


def _metric(header: str, key: str) -> Column:
    unit = METRICS[key].unit
    form = thousands if unit == "1/s" else lambda value: quantity(value, unit)
    return Column(header, lambda arm: told(form, arm.median(key)))


def _moved(header: str, part: Callable[[Moved], int]) -> Column:
    return Column(header, lambda arm: None if arm.moved is None else f"{number(part(arm.moved) / 1e9)} GB")


def _bound(header: str, part: Callable[[Bound], float]) -> Column:
    return Column(header, lambda arm: None if arm.bound is None else milliseconds(part(arm.bound)))


def _gflop(arm: Arm) -> str | None:
    flops = next((flops for run in arm.runs if (flops := run.record.proof.get("flops"))), None)
    return None if flops is None else number(sum(flops.values()) / 1e9, 4)


def _saved(arm: Arm) -> str | None:
    """In percent, with the interval where there is one; values that are identical need none."""
    saved: Estimate | None = arm.figures.memory_saved_pct
    if saved is None:
        return None
    value, ends = estimate(saved)
    return f"{value}%" if ends is None else f"{value}% [{ends[0]}, {ends[1]}]"


def _difference(ours: float | None, theirs: float | None) -> str | None:
    return None if ours is None or theirs is None else signed_percent(100 * (ours / theirs - 1))


def _counted(arm: Arm) -> str | None:
    return str(len(arm.undisturbed)) if arm.undisturbed else None


SPEED: Final = (
    Column("n", _counted),
    Column("step", lambda arm: told(milliseconds, arm.figures.step_ms)),
    Column("speedup [95 %]", lambda arm: None if (found := arm.figures.speedup) is None else ratio_figure(found)),
    _metric("tokens/s", "perf/tokens_per_sec"),
    _metric("samples/s", "perf/samples_per_sec"),
    _metric("TFLOP/s", "perf/tflops_per_sec"),
    _metric("MFU", "perf/mfu_pct"),
    _bound("bound", lambda bound: bound.step_ms),
    Column("share of bound", lambda arm: told(percent, arm.share_pct)),
)
ROOFLINE: Final = (
    Column("GFLOP a step", _gflop),
    _moved("casts", lambda moved: moved.casts),
    _moved("unscale", lambda moved: moved.unscale),
    _moved("clipping", lambda moved: moved.clipping),
    _moved("optimizer", lambda moved: moved.optimizer),
    _moved("moved in all", lambda moved: moved.total),
    _bound("arithmetic", lambda bound: bound.arithmetic_ms),
    _bound("moving", lambda bound: bound.moving_ms),
    _bound("bound", lambda bound: bound.step_ms),
)
MEMORY: Final = (
    Column("peak", lambda arm: told(num_bytes, arm.figures.peak_memory_bytes)),
    Column("predicted", lambda arm: told(num_bytes, arm.figures.predicted_memory_bytes)),
    Column("error", lambda arm: told(signed_percent, arm.figures.prediction_error_pct)),
    Column("saved [95 %]", _saved),
    _metric("reserved", "memory/peak_reserved_gib"),
)
DEVICE: Final = (
    _metric("utilization", "device/utilization_pct"),
    _metric("power", "device/power_w"),
    _metric("energy a sample", "device/energy_per_sample_j"),
    _metric("clock", "device/clock_mhz"),
    _metric("temperature", "device/temperature_c"),
    _metric("power cap held", "device/power_capped_pct"),
    _metric("slowed by heat", "device/throttled_pct"),
)
BESIDE: Final = (
    Column("n", lambda arm: None if arm.by_hand is None else f"{len(arm.undisturbed)}, {arm.by_hand.n}"),
    Column("step", lambda arm: told(milliseconds, arm.figures.step_ms)),
    Column("by hand", lambda arm: None if arm.by_hand is None else milliseconds(arm.by_hand.step_ms)),
    Column(
        "ratio [95 %]",
        lambda arm: None if arm.by_hand is None or arm.by_hand.against is None else ratio_figure(arm.by_hand.against),
    ),
    Column("by the wall", lambda arm: told(milliseconds, arm.wall_ms)),
    Column("wall by hand", lambda arm: None if arm.by_hand is None else milliseconds(arm.by_hand.wall_ms)),
    Column("difference", lambda arm: None if arm.by_hand is None else _difference(arm.wall_ms, arm.by_hand.wall_ms)),
    _metric("reported overhead", "instrumentation/overhead_pct"),
    Column("peak", lambda arm: told(num_bytes, arm.figures.peak_memory_bytes)),
    Column("peak by hand", lambda arm: None if arm.by_hand is None else told(num_bytes, arm.by_hand.peak_bytes)),
    Column(
        "peaks' difference",
        lambda arm: None if arm.by_hand is None else _difference(arm.figures.peak_memory_bytes, arm.by_hand.peak_bytes),
    ),
    _metric("tokens/s", "perf/tokens_per_sec"),
    Column(
        "tokens/s by hand", lambda arm: None if arm.by_hand is None else told(thousands, arm.by_hand.tokens_per_sec)
    ),
)


def bounds_against(arms: Sequence[Arm], baseline: str) -> list[str]:
    """A line on what the arms can gain at most: the baseline's bound over theirs."""
    bounds = {arm.name: arm.bound.step_ms for arm in arms if arm.bound is not None}
    if baseline not in bounds:
        return []
    found = [f"{name} {ratio(bounds[baseline] / ms)}" for name, ms in bounds.items() if name != baseline]
    return (
        [f"By their bounds the arms can be faster than {baseline} by at most: {', '.join(found)}.", ""] if found else []
    )
