"""The figure of a panel: Plotly's traces and layout, perhaps a table, and remarks for the reader."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ampsweep.metrics import METRICS
from ampsweep.report.extent import Extent
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.table import Table
from ampsweep.report.workload_data import ArmRuns
from ampsweep.text import listed

Trace = dict[str, Any]
Layout = dict[str, Any]

BAR_HEIGHT_PX: Final = 38


@dataclass(frozen=True)
class PanelFigure:
    """A panel that has something to show, drawn.

    The traces are Plotly's. `meta` of a trace says what it belongs to, for the filters of the page: `arm` and `seed`
    of the whole trace, or `arms` and `seeds` of its points; `by_seed` (see there) has what takes the place of the
    trace's data, which are of all seeds, where one is chosen; `over_seeds` marks what there is of all seeds only,
    `only_alone` what is drawn only where a seed is chosen.
    """

    traces: Sequence[Trace]
    layout: Layout
    table: Table | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoFigure:
    """The reason why a panel has nothing to show."""

    reason: str


@dataclass(frozen=True)
class Style:
    """The way a page draws: the style of each arm, and how much of its runs."""

    arms: Mapping[str, ArmStyle]
    extent: Extent = field(default_factory=Extent)


@dataclass
class Remarks:
    """Collects, arm by arm, what a panel cannot show."""

    lines: list[str] = field(default_factory=list)

    def without(self, arms: Sequence[str], why: str = "not measured") -> None:
        if arms:
            self.lines.append(f"{', '.join(arms)}: {why}")

    def of_dots(self, num_values: int, style: Style) -> None:
        """Note that dots are left out, if an arm has `num_values` and that is too many."""
        most = style.extent.max_dots
        if most is not None and num_values > most:
            self.lines.append(
                f"of up to {num_values:,} dots of an arm, {most} are drawn, at even steps from the lowest to the "
                "highest, and those of the seeds that can be chosen; the figures are of all"
            )

    def of_speed(self, data: ArmRuns, arms: Sequence[str], key: str, shown: Container[str]) -> None:
        """Note arms without a value of `key`, and those whose runs are contaminated: that has no speed."""
        disturbed = {arm: runs for arm in arms if (runs := data.contaminated(arm, key))}
        self.without([arm for arm in arms if arm not in shown and arm not in disturbed])
        for arm, runs in disturbed.items():
            seeds = listed(map(str, sorted({run.seed for run in runs})))
            self.lines.append(f"{arm}: contaminated, hence left out (seed {seeds})")


def not_measured(panel: Panel) -> NoFigure:
    return NoFigure(f"no run measured {' or '.join(panel.metrics)}")


def by_seed(data: Mapping[int, Trace]) -> Trace:
    """A trace's data for each seed, as the page's script takes them: `seeds`, and for each key of the data a list each.

    Numbers have 6 significant digits, enough for a picture.
    """
    keys = dict.fromkeys(key for of_seed in data.values() for key in of_seed)
    columns = {key: [[_shortened(value) for value in of_seed[key]] for of_seed in data.values()] for key in keys}
    return {"seeds": list(data), **columns}


def _shortened(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def plotly_text(text: str) -> str:
    """Text that Plotly, which reads some HTML in labels, shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def arm_label(arm: str) -> str:
    """An arm as a label of an axis, over as many lines as it has parts."""
    return plotly_text(arm).replace("+", "<br>+")


def axis_title(panel: Panel, unit: str) -> str:
    """Title of a metric's axis: its name and unit."""
    key = panel.metrics[0]
    metric = METRICS.get(key)
    name = panel.title if metric is None or len(panel.metrics) > 1 else _name(key)
    return f"{name} ({unit})" if unit else name


def value_axis(title: str, **more: Any) -> Layout:
    return {"title": {"text": title}, "automargin": True, "zeroline": False, **more}


def arm_axis(arms: Sequence[str]) -> Layout:
    """An axis with an arm a row, the first on top."""
    labels = [arm_label(arm) for arm in arms]
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": labels,
        "range": [len(arms) - 0.45, -0.55],
        "automargin": True,
        "fixedrange": True,
    }


def rows_height(num_rows: int, row_px: int = BAR_HEIGHT_PX, *, legend: bool = False) -> int:
    """Height in pixels of a figure with a row an arm."""
    return 90 + row_px * max(num_rows, 2) + (60 if legend else 0)


def _name(key: str) -> str:
    """A metric's name in prose: `perf/step_ms` is named by its meaning, the others by their key without the unit."""
    return _NAMES.get(key) or key.partition("/")[2].removesuffix("_gib").removesuffix("_pct").replace("_", " ")


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
