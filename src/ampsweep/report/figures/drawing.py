"""Parts that all kinds of panels share: rows of arms, dots, axes, remarks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ampsweep.metrics import METRICS
from ampsweep.report.figure import Figure, Json, scatter
from ampsweep.report.page_limits import JSON_NAME, MAX_DOTS
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import as_sentence

_ROW_PX: Final = 38
_NAMES: Final = {
    "perf/step_ms": "step time",
    "perf/data_wait_ms": "wait a step",
    "perf/samples_per_sec": "samples per second",
    "perf/tokens_per_sec": "tokens per second",
    "perf/mfu_pct": "share of the dense peak",
    "memory/peak_allocated_gib": "peak allocated",
    "train/loss": "training loss",
    "train/grad_norm": "gradient norm",
    "val/loss": "validation loss",
    "device/power_w": "power",
    "device/energy_per_sample_j": "energy of a sample",
    "amp/scale": "scale",
}
"""Names of metrics whose key without its unit is not a good name."""


def without(arms: Sequence[str], why: str = "not measured, or nothing that counts") -> list[str]:
    """The remark that these arms are not shown."""
    return [f"{', '.join(arms)}: {why}"] if arms else []


def dots_left_out(num_values: int) -> list[str]:
    """The remark that dots are left out, if an arm has too many values."""
    if num_values <= MAX_DOTS:
        return []
    return [f"of up to {num_values:,} dots of an arm the first {MAX_DOTS} are drawn; {JSON_NAME} has all runs"]


def panel_figure(panel: Panel, remarks: Iterable[str], **content: Any) -> Figure:
    return Figure(
        key=panel.key,
        title=panel.title,
        question=panel.question,
        note=panel.note,
        wide=panel.kind in ("front", "stack"),
        remarks=tuple(map(as_sentence, remarks)),
        **content,
    )


def arms_table(
    panel: Panel,
    columns: Iterable[Column | str],
    rows: Mapping[str, Sequence[Cell]],
    arms: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """The numbers of a panel, a row for each arm; `arms` has the arms of rows with another name."""
    numeric = (Column(column, numeric=True) if isinstance(column, str) else column for column in columns)
    return Table(
        key=panel.key,
        columns=(Column("arm"), *numeric),
        rows=tuple(Row((Cell(name), *cells), arm=arms.get(name, name)) for name, cells in rows.items()),
    )


def dots(
    arm: str, by_seed: Sequence[tuple[int, float]], factor: float, text: Callable[[float], str], look: ArmStyle
) -> Json:
    """A dot for each seed in the row of an arm; `factor` converts values to the unit of the axis."""
    drawn = by_seed[:MAX_DOTS]
    x, y = [value * factor for _, value in drawn], [arm] * len(drawn)
    hover = [f"seed {seed}: {text(value)}" for seed, value in drawn]
    return scatter(arm, x, y, look.colour, symbol=look.symbol, edge=1.5, hover=hover, meta={"arm": arm})


def metric_name(panel: Panel) -> str:
    """The metric of a panel in words."""
    key = panel.metrics[0]
    if key not in METRICS or len(panel.metrics) > 1:
        return panel.title
    own = key.partition("/")[2].removesuffix("_gib").removesuffix("_pct").replace("_", " ")
    return panel.keys.named(_NAMES.get(key, own))


def rows_height(num_rows: int, row_px: int = _ROW_PX, *, legend: bool = False) -> int:
    """Height of a figure in pixels."""
    return 90 + row_px * max(num_rows, 2) + (60 if legend else 0)
