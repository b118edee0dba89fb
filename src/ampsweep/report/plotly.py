"""The figures of a report as Plotly draws them: the one place that knows its keys."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ampsweep.report.figure import INK, Area, Axis, Bars, Figure, Heat, Margin, Mark, Owner, Rule, Scatter

Json = dict[str, Any]

_BAR_TEXT: Final = "#111111"
_TEXT_PX: Final = 7
"""Width of a character beside a bar, for which there is room on the right."""


def plotly(figure: Figure) -> Json:
    """`data` and `layout`. A trace's `meta` says what it belongs to, for the filters of a page."""
    layout: Json = {
        "xaxis": _axis(figure.x),
        "yaxis": _axis(figure.y),
        "height": figure.height,
        "showlegend": figure.legend,
        "hovermode": "closest",
        "shapes": [*map(_rule, figure.rules), *map(_margin, figure.margins)],
    }
    if any(isinstance(mark, Bars) for mark in figure.marks):
        layout |= {"barmode": "stack" if figure.stacked else "group", "bargap": 0.3}
        layout |= {"legend": {"traceorder": "normal"}}
        layout |= {"uniformtext": {"minsize": 11, "mode": "hide"}} if figure.stacked else {}
    if texts := [one for mark in figure.marks for one in _beside(mark)]:
        layout["margin"] = {"r": _TEXT_PX * max(map(len, texts)) + 8}
    if any(isinstance(mark, Heat) for mark in figure.marks):
        # The formats that were chosen stay when the theme changes.
        layout |= {"uirevision": "kept", "margin": {"t": 66}}
        layout["legend"] = {"y": 1.0, "yref": "container", "yanchor": "top"}
    return {"data": [trace for mark in figure.marks for trace in _TRACES[type(mark)](mark)], "layout": layout}


def _beside(mark: Mark) -> Sequence[str]:
    """Texts that may stand beside what is drawn."""
    if isinstance(mark, Bars):
        return () if mark.inside else mark.texts
    return mark.texts if isinstance(mark, Scatter) else ()


def text(plain: str) -> str:
    """Text that Plotly, which reads some HTML in labels, shows as it is."""
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def row_label(row: str) -> str:
    """A row as a label of an axis, an arm over as many lines as it has parts."""
    return text(row).replace("+", "<br>+")


def _axis(of: Axis) -> Json:
    drawn: Json = {"title": {"text": text(of.title)}, "automargin": True, "zeroline": False}
    if of.rows:
        labels = [*map(row_label, of.rows)]
        ends = [len(labels) - 0.45, -0.55]
        drawn |= {"type": "category", "categoryorder": "array", "categoryarray": labels, "range": ends}
        return drawn | {"fixedrange": True}
    if of.log:
        # Ticks at 1, 2 and 5 of each decade, with whole figures: Plotly's own are bare digits between decades.
        drawn |= {"type": "log", **({"dtick": 1, "exponentformat": "power"} if of.power else {"dtick": "D2"})}
    if not of.power:
        drawn |= {"tickformat": "~g"} if of.log else {"exponentformat": "e"}  # no SI prefixes beside our own units
    if of.from_zero:
        drawn["rangemode"] = "tozero"
    if of.range is not None:
        drawn["range"] = list(of.range)
    if of.ticks is not None:
        texts = [re.sub(r"\^(-?\d+)", r"<sup>\1</sup>", text(one).replace("\n", "<br>")) for one in of.ticks.values()]
        drawn |= {"tickvals": list(of.ticks), "ticktext": texts, "tickangle": 0, "showgrid": False}
    return drawn


def _meta(of: Owner) -> Json:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(of).items() if _is_set(value)
    }


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ()


def _bars(of: Bars) -> list[Json]:
    trace: Json = {
        "type": "bar",
        "orientation": "h",
        "x": list(of.values),
        "y": [*map(row_label, of.rows)],
        "name": text(of.name),
        "hoverinfo": "text+name",
        "hovertext": list(of.hover or of.texts),
        "cliponaxis": False,
        "marker": {
            "color": of.colour,
            "line": {"width": 1, "color": "rgba(0,0,0,0.35)"},
            "pattern": {"shape": list(of.patterns), "fillmode": "overlay", "fgcolor": _BAR_TEXT, "fgopacity": 0.25},
        },
        "meta": _meta(of.owner),
    }
    if of.texts:
        place = "inside" if of.inside else "auto"
        trace |= {"text": list(of.texts), "textposition": place, "textangle": 0, "insidetextanchor": "middle"}
        trace |= {"insidetextfont": {"color": _BAR_TEXT}, "constraintext": "both" if of.inside else "none"}
    return [trace]


def _scatter(of: Scatter) -> list[Json]:
    modes = [*(["lines"] if of.line else []), *(["markers"] if of.symbols else []), *(["text"] if of.texts else [])]
    symbols = [f"{one}-open" if of.hollow else one for one in of.symbols]
    trace: Json = {
        "type": "scatter",
        "mode": "+".join(modes) or "none",
        "x": _places(of.x),
        "y": _places(of.y),
        "name": text(of.name),
        "showlegend": of.legend,
        "opacity": of.opacity,
        "meta": _meta(of.owner),
    }
    trace |= {"hovertext": list(of.hover), "hoverinfo": "text+name"} if of.hover else {"hoverinfo": "x+y+name"}
    if of.label:
        trace["hovertemplate"] = f"%{{x}}, %{{y}}<extra>{text(of.label)}</extra>"
    if not of.name:
        trace["hoverinfo"] = "skip"
    if of.line:
        trace["line"] = {"color": of.colour, "width": of.line, "dash": of.dash}
    if of.symbols:
        edge = {"width": 3, "color": of.colour} if of.hollow else {"width": 1.5 * of.outlined, "color": INK}
        trace["marker"] = {
            "color": of.colour,
            "symbol": symbols if len(symbols) > 1 else symbols[0],
            "size": of.size,
            "line": edge,
        }
    if of.texts:
        trace |= {"text": [*map(text, of.texts)], "textposition": "middle right", "cliponaxis": False}
    if of.group:
        trace["legendgroup"] = of.group
    if of.hidden:
        trace["visible"] = "legendonly"
    if of.interval is not None and any(low != high for low, high in of.ends):
        values = of.x if of.interval == "x" else of.y
        assert all(isinstance(value, float | int) for value in values), of.name
        trace[f"error_{of.interval}"] = {
            "type": "data",
            "array": [high - float(value or 0) for value, (_, high) in zip(values, of.ends, strict=True)],
            "arrayminus": [float(value or 0) - low for value, (low, _) in zip(values, of.ends, strict=True)],
            "color": of.colour,
            "thickness": 2,
            "width": 7,
        }
    return [trace]


def _places(values: Sequence[float | int | str | None]) -> list[Any]:
    return [row_label(value) if isinstance(value, str) else value for value in values]


def _area(of: Area) -> list[Json]:
    red, green, blue = (int(of.colour[place : place + 2], 16) for place in (1, 3, 5))
    edge: Json = {
        "type": "scatter",
        "mode": "lines",
        "x": list(of.x),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": of.group,
        "meta": _meta(of.owner),
    }
    filled = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}
    return [{**edge, "y": list(of.low)}, {**edge, "y": list(of.high), **filled}]


def _heat(of: Heat) -> list[Json]:
    least = -5
    return [
        {
            "type": "heatmap",
            "x": list(of.x),
            "y": list(range(len(of.names))),
            "z": [list(row) for row in of.logs],
            "text": [list(row) for row in of.texts],
            "customdata": [[text(name)] * len(of.x) for name in of.names],
            "hovertemplate": "%{customdata}<br>2<sup>%{x:.1f}</sup>: %{text} of its elements<extra></extra>",
            "hoverongaps": False,
            "colorscale": "Viridis",
            "zmin": least,
            "zmax": 0,
            "ygap": 1,
            "showlegend": False,
            "colorbar": {
                "thickness": 12,
                "lenmode": "pixels",
                "len": 220,
                "y": 1.0,
                "yanchor": "top",
                "outlinewidth": 0,
                "tickvals": list(range(least, 1)),
                "ticktext": [f"{100 * 10.0**decade:g}%" for decade in range(least, 1)],
            },
        }
    ]


def _rule(of: Rule) -> Json:
    along, across = ("x", "y") if of.axis == "x" else ("y", "x")
    ends = {f"{along}0": of.at, f"{along}1": of.at, f"{across}0": 0, f"{across}1": 1, f"{across}ref": "paper"}
    return {"type": "line", **ends, "line": {"dash": "dot"}}


def _margin(of: Margin) -> Json:
    place = {"x0": of.low, "x1": of.high, "y0": of.row - 0.4, "y1": of.row + 0.4}
    return {"type": "rect", "layer": "below", **place, "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.22)"}


_TRACES: Final[Mapping[type[Mark], Callable[[Any], list[Json]]]] = {
    Bars: _bars,
    Scatter: _scatter,
    Area: _area,
    Heat: _heat,
}
