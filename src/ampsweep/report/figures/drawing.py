"""Parts that all kinds of panels are drawn with: the looks of arms, the extent of a page, axes, remarks."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ampsweep.metrics import METRICS
from ampsweep.report.extent import Extent
from ampsweep.report.figure import Figure, Json, NoFigure, scatter
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.report.workload_data import Anything, ArmRuns
from ampsweep.text import as_sentence, seeds_text

_ROW_PX: Final = 38
_NAMES: Final = {
    "perf/step_ms": "step time",
    "perf/data_wait_ms": "wait a step",
    "perf/samples_per_sec": "samples per second",
    "perf/tokens_per_sec": "tokens per second",
    "perf/communication_ms": "wait a step",
    "perf/reduced_mib": "reduced a step",
    "perf/mfu_pct": "share of the dense peak",
    "memory/peak_allocated_gib": "peak allocated",
    "memory/largest_batch": "batch size",
    "train/loss": "training loss",
    "train/grad_norm": "gradient norm",
    "val/loss": "validation loss",
    "val/accuracy": "validation accuracy",
    "val/autocast_penalty": "validation loss under autocast minus that without",
    "device/power_w": "power",
    "device/energy_j": "energy",
    "device/energy_per_sample_j": "energy of a sample",
    "device/temperature_c": "temperature",
    "device/clock_mhz": "clock",
    "amp/scale": "scale",
}
"""Metrics in prose, where the key without its unit is none."""


@dataclass(frozen=True)
class Style:
    """The way a page draws: the style of each arm, and how much of its runs."""

    arms: Mapping[str, ArmStyle]
    extent: Extent = field(default_factory=Extent)


@dataclass
class Remarks:
    """Collects, arm by arm, what a panel cannot show."""

    clauses: list[str] = field(default_factory=list)

    def without(self, arms: Sequence[str], why: str = "not measured") -> None:
        if arms:
            self.clauses.append(f"{', '.join(arms)}: {why}")

    def of_dots(self, num_values: int, style: Style) -> None:
        """Note that dots are left out, if an arm has `num_values` and that is too many."""
        most = style.extent.max_dots
        if most is not None and num_values > most:
            self.clauses.append(
                f"of up to {num_values:,} dots of an arm, {most} are drawn, at even steps from the lowest to the "
                "highest, and those of the seeds that can be chosen; the figures are of all"
            )

    def of_speed(self, data: ArmRuns[Anything], arms: Sequence[str], key: str, shown: Container[str]) -> None:
        """Note arms without a value of `key`, and those whose runs are contaminated: that has no speed."""
        disturbed = {arm: runs for arm in arms if (runs := data.contaminated(arm, key))}
        self.without([arm for arm in arms if arm not in shown and arm not in disturbed])
        seeds = {arm: sorted({run.seed for run in runs}) for arm, runs in disturbed.items()}
        if seeds:
            named = ", ".join(f"{arm} ({seeds_text(of)})" for arm, of in seeds.items())
            self.clauses.append(f"left out as contaminated: {named}")


def panel_figure(panel: Panel, remarks: Remarks, **content: Any) -> Figure:
    """The figure of a panel; `content` is what it shows."""
    return Figure(
        key=panel.key,
        title=panel.title,
        question=panel.question,
        note=panel.note,
        wide=panel.kind in ("front", "stack", "chain"),
        remarks=tuple(map(as_sentence, remarks.clauses)),
        **content,
    )


def arms_table(
    panel: Panel,
    columns: Iterable[Column | str],
    rows: Mapping[str, Sequence[Cell]],
    arms: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """The figures of a panel: an arm a row, a column of numbers for each name.

    Args:
        arms: the arms of rows that have another name.
    """
    shown = (Column(one, numeric=True) if isinstance(one, str) else one for one in columns)
    return Table(
        key=panel.key,
        columns=(Column("arm"), *shown),
        rows=tuple(Row((Cell(name), *cells), arm=arms.get(name, name)) for name, cells in rows.items()),
    )


def dots(
    arm: str, by_seed: Sequence[tuple[int, float]], factor: float, text: Callable[[float], str], style: Style
) -> Json:
    """A dot a seed in the row of an arm; `factor` turns a value into the unit of the axis."""
    drawn, look = style.extent.dots(by_seed), style.arms[arm]
    x, y = [value * factor for _, value in drawn], [arm] * len(drawn)
    hover = [f"seed {seed}: {text(value)}" for seed, value in drawn]
    meta = {"arm": arm, "seeds": [seed for seed, _ in drawn]}
    return scatter(arm, x, y, look.colour, symbol=look.symbol, edge=1.5, hover=hover, meta=meta)


def not_measured(panel: Panel) -> NoFigure:
    return NoFigure(f"no run measured {' or '.join(panel.metrics)}")


def metric_name(panel: Panel) -> str:
    """The metric of a panel in prose."""
    key = panel.metrics[0]
    if key not in METRICS or len(panel.metrics) > 1:
        return panel.title
    return _NAMES.get(key) or key.partition("/")[2].removesuffix("_gib").removesuffix("_pct").replace("_", " ")


def axis_title(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def rows_height(num_rows: int, row_px: int = _ROW_PX, *, legend: bool = False) -> int:
    """Height in pixels of a figure with so many rows."""
    return 90 + row_px * max(num_rows, 2) + (60 if legend else 0)
