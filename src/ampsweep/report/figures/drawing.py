"""Parts that all kinds of panels share: rows of arms, dots, axes, remarks."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ampsweep.report.figure import Figure, Json, scatter
from ampsweep.report.palette import ArmStyle
from ampsweep.report.panels import Panel
from ampsweep.report.tables import JSON_NAME, Cell, Column, Row, Table, count_cell, quantity_cell
from ampsweep.text import as_sentence

_ROW_PX: Final = 38
_MAX_DOTS: Final = 200  # dots of an arm in one panel


def without(arms: Sequence[str], why: str = "not measured, or nothing that counts") -> list[str]:
    """The remark that these arms are not shown."""
    return [f"{', '.join(arms)}: {why}"] if arms else []


def dots_left_out(num_values: int) -> list[str]:
    """The remark that dots are left out, if an arm has too many values."""
    if num_values <= _MAX_DOTS:
        return []
    return [f"of up to {num_values:,} dots of an arm the first {_MAX_DOTS} are drawn; {JSON_NAME} has all runs"]


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
    arms: Mapping[str, str] | None = None,
) -> Table:
    """The numbers of a panel, a row for each arm; `arms` has the arms of rows with another name."""
    numeric = (Column(column, numeric=True) if isinstance(column, str) else column for column in columns)
    return Table(
        key=panel.key,
        columns=(Column("arm"), *numeric),
        rows=tuple(Row((Cell(name), *cells), arm=(arms or {}).get(name, name)) for name, cells in rows.items()),
    )


def range_cells(figure: float, values: Iterable[float], num_runs: int, unit: str) -> list[Cell]:
    """A figure of runs, the lowest and highest of their values, and their number."""
    known = list(values)
    return [*(quantity_cell(value, unit) for value in (figure, min(known), max(known))), count_cell(num_runs)]


def dots(
    arm: str, by_seed: Sequence[tuple[int, float]], factor: float, text: Callable[[float], str], look: ArmStyle
) -> Json:
    """A dot for each seed in the row of an arm; `factor` converts values to the unit of the axis."""
    drawn = by_seed[:_MAX_DOTS]
    x, y = [value * factor for _, value in drawn], [arm] * len(drawn)
    hover = [f"seed {seed}: {text(value)}" for seed, value in drawn]
    return scatter(arm, x, y, look.colour, symbol=look.symbol, edge=1.5, hover=hover, meta={"arm": arm})


def metric_name(panel: Panel) -> str:
    """The metric of a panel, for its axis: the title without that of the other axis."""
    name = re.split(" against | over ", panel.title)[0]
    return name[0].lower() + name[1:]


def rows_height(num_rows: int, row_px: int = _ROW_PX, *, legend: bool = False) -> int:
    """Height of a figure in pixels."""
    return 90 + row_px * max(num_rows, 2) + (60 if legend else 0)
