"""The figure of a report, and the parts of its picture as Plotly's JSON; nothing else knows how they look."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ampsweep.report.tables import Table

Json = dict[str, Any]
Number = float | int | None  # a value on an axis; None is a gap

_INK: Final = "#333333"
"""Outlines; a dark page draws them light."""
_BAR_TEXT: Final = "#111111"
_BESIDE: Final = "middle right"
_TEXT_PX: Final = 7  # width of a character beside a bar, to leave room on the right
_LEAST_DECADE: Final = -5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with the question that it answers, and its numbers as a table."""

    key: str  # its name in files and links: lower case, unique within its section
    title: str
    question: str = ""
    note: str = ""
    remarks: tuple[str, ...] = ()  # sentences about what it does not show
    table: Table | None = None
    wide: bool = False
    traces: Sequence[Json] = ()
    """`meta` of each names its `arm`, or the arm of each point (`arms`), by which a page hides it."""
    x: Json = field(default_factory=dict)
    y: Json = field(default_factory=dict)
    shapes: Sequence[Json] = ()
    legend: bool = False
    height: int = 340

    def plotly(self) -> Json:
        layout: Json = {
            "xaxis": self.x or axis(),
            "yaxis": self.y or axis(),
            "height": self.height,
            "showlegend": self.legend,
            "hovermode": "closest",
            "shapes": list(self.shapes),
        }
        types = {trace["type"] for trace in self.traces}
        if "bar" in types:
            layout |= {"barmode": "stack", "bargap": 0.3, "legend": {"traceorder": "normal"}}
            layout["uniformtext"] = {"minsize": 11, "mode": "hide"}
        beside = [trace["text"] for trace in self.traces if trace.get("textposition") == _BESIDE]
        if texts := [text for of_trace in beside for text in of_trace]:
            layout["margin"] = {"r": _TEXT_PX * max(map(len, texts)) + 8}
        if "heatmap" in types:
            layout |= {"uirevision": "kept", "margin": {"t": 66}}  # keeps the chosen formats when the theme changes
            layout["legend"] = {"y": 1.0, "yref": "container", "yanchor": "top"}
        return {"data": list(self.traces), "layout": layout}


def label(plain: str) -> str:
    """Escape text for Plotly, which renders some HTML in labels."""
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def row_label(row: str) -> str:
    """The axis label of a row; each part of an arm's name has a line."""
    return label(row).replace("+", "<br>+")


def axis(
    title: str = "",
    unit: str = "",
    *,
    after: str = "",
    log: bool = False,
    from_zero: bool = False,
    range: tuple[float, float] | None = None,
    ticks: Mapping[float, str] | None = None,
) -> Json:
    """An axis of numbers.

    Args:
        after: text after the unit.
        range: the ends; by default those of the values.
        ticks: value -> label; by default Plotly's choice.
    """
    text = (f"{title} ({unit})" if unit else title) + after
    drawn: Json = {"title": {"text": label(text), "standoff": 10}, "automargin": True, "zeroline": False}
    # Plotly places ticks to suit any range: few, as those between decades crowd; with a format they are whole numbers.
    of_log: Json = {"type": "log", "nticks": 3, "tickformat": "~g"}
    drawn |= of_log if log else {"exponentformat": "e"}  # no SI prefixes beside our own units
    if from_zero:
        drawn["rangemode"] = "tozero"
    if range is not None:
        drawn["range"] = list(range)
    if ticks is not None:
        texts = [re.sub(r"\^(-?\d+)", r"<sup>\1</sup>", label(text)) for text in ticks.values()]
        drawn |= {"tickvals": list(ticks), "ticktext": texts, "tickangle": 0, "showgrid": False}
    return drawn


def row_axis(rows: Sequence[str]) -> Json:
    """A category axis, the first row at the top."""
    labels = [*map(row_label, rows)]
    ends = [len(labels) - 0.45, -0.55]
    of_rows = {"type": "category", "categoryorder": "array", "categoryarray": labels, "range": ends, "fixedrange": True}
    return axis() | of_rows


def bars(
    name: str,
    rows: Sequence[str],
    values: Sequence[Number],
    colour: str,
    *,
    meta: Json,
    texts: Sequence[str] = (),
    hover: Sequence[str] = (),
    patterns: Sequence[str] = (),
) -> Json:
    """A horizontal bar in each row; `texts` are inside the bars, unless there is no room."""
    trace: Json = {
        "type": "bar",
        "orientation": "h",
        "x": list(values),
        "y": [*map(row_label, rows)],
        "name": label(name),
        "hoverinfo": "text+name",
        "hovertext": list(hover or texts),
        "cliponaxis": False,
        "marker": {
            "color": colour,
            "line": {"width": 1, "color": "rgba(0,0,0,0.35)"},
            "pattern": {"shape": list(patterns), "fillmode": "overlay", "fgcolor": _BAR_TEXT, "fgopacity": 0.25},
        },
        "meta": meta,
    }
    if texts:
        trace |= {"text": list(texts), "textposition": "inside", "textangle": 0, "insidetextanchor": "middle"}
        trace |= {"insidetextfont": {"color": _BAR_TEXT}, "constraintext": "both"}
    return trace


def scatter(
    name: str,
    x: Sequence[Number | str],
    y: Sequence[Number | str],
    colour: str,
    *,
    line: float = 0.0,
    dash: str = "solid",
    symbol: str = "",
    size: int = 9,
    edge: float = 0.0,
    hollow: bool = False,
    texts: Sequence[str] = (),
    hover: Sequence[str] = (),
    meta: Json | None = None,
    **more: Any,
) -> Json:
    """Points, a line through them, or both.

    Args:
        line, edge: widths in pixels of the line and of the points' outlines; 0: none.
        symbol: the points' marker; empty: none.
        texts: labels beside the points.
        more: further attributes of the trace.
    """
    modes = [mode for mode, is_on in (("lines", line), ("markers", symbol), ("text", texts)) if is_on]
    trace: Json = {
        "type": "scatter",
        "mode": "+".join(modes) or "none",
        "x": [row_label(value) if isinstance(value, str) else value for value in x],
        "y": [row_label(value) if isinstance(value, str) else value for value in y],
        "name": label(name),
        "hoverinfo": ("text+name" if hover else "x+y+name") if name else "skip",
        "meta": meta or {},
    }
    if hover:
        trace["hovertext"] = list(hover)
    if line:
        trace["line"] = {"color": colour, "width": line, "dash": dash}
    if symbol:
        outline = {"width": 3, "color": colour} if hollow else {"width": edge, "color": _INK}
        symbol = f"{symbol}-open" if hollow else symbol
        trace["marker"] = {"color": colour, "symbol": symbol, "size": size, "line": outline}
    if texts:
        trace |= {"text": [*map(label, texts)], "textposition": _BESIDE, "cliponaxis": False}
    return trace | more


def whiskers(
    along: Literal["x", "y"], values: Sequence[float], ends: Sequence[tuple[float, float]], colour: str
) -> Json:
    """The error bars of a scatter, as its attribute; empty if each interval is a single value."""
    if all(low == high for low, high in ends):
        return {}
    above = [high - value for value, (_, high) in zip(values, ends, strict=True)]
    below = [value - low for value, (low, _) in zip(values, ends, strict=True)]
    drawn = {"type": "data", "array": above, "arrayminus": below, "color": colour, "thickness": 2, "width": 7}
    return {f"error_{along}": drawn}


def area(x: Sequence[Number], low: Sequence[Number], high: Sequence[Number], colour: str, **more: Any) -> list[Json]:
    """The shaded area between two lines, as two traces."""
    red, green, blue = bytes.fromhex(colour[1:])
    edge: Json = {"type": "scatter", "mode": "lines", "x": list(x), "line": {"width": 0}, "hoverinfo": "skip"}
    edge |= {"showlegend": False, **more}
    filled = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}
    return [{**edge, "y": list(low)}, {**edge, "y": list(high), **filled}]


def heat(
    x: Sequence[float], shares: Sequence[Sequence[float]], texts: Sequence[Sequence[str]], names: Sequence[str]
) -> Json:
    """A heat map, a row for each of `names`, coloured by log10 of the share, from 10**-5 (and less) to 1."""
    logs = [[round(max(math.log10(share), _LEAST_DECADE), 2) if share else None for share in row] for row in shares]
    decades = range(_LEAST_DECADE, 1)
    bar = {"thickness": 12, "lenmode": "pixels", "len": 220, "y": 1.0, "yanchor": "top", "outlinewidth": 0}
    return {
        "type": "heatmap",
        "x": list(x),
        "y": list(range(len(names))),
        "z": logs,
        "text": [list(row) for row in texts],
        "customdata": [[label(name)] * len(x) for name in names],
        "hovertemplate": "%{customdata}<br>2<sup>%{x:.1f}</sup>: %{text} of its elements<extra></extra>",
        "hoverongaps": False,
        "colorscale": "Viridis",
        "zmin": _LEAST_DECADE,
        "zmax": 0,
        "ygap": 1,
        "showlegend": False,
        "colorbar": bar | {"tickvals": list(decades), "ticktext": [f"{100 * 10.0**decade:g}%" for decade in decades]},
    }


def rule(at: float, along: Literal["x", "y"] = "x") -> Json:
    """A dotted line across the figure at a value of an axis."""
    across = "y" if along == "x" else "x"
    ends = {f"{along}0": at, f"{along}1": at, f"{across}0": 0, f"{across}1": 1, f"{across}ref": "paper"}
    return {"type": "line", **ends, "line": {"dash": "dot"}}


def margin(low: float, high: float, row: int | None = None) -> Json:
    """A shaded interval: of the x axis in one row, or of the y axis."""
    if row is None:
        place: Json = {"x0": 0, "x1": 1, "xref": "paper", "y0": low, "y1": high}
    else:
        place = {"x0": low, "x1": high, "y0": row - 0.4, "y1": row + 0.4}
    return {"type": "rect", "layer": "below", **place, "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.22)"}
