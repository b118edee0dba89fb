"""Kind `front`: the arms by cost and peak memory, those that no other beats filled and connected."""

from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.costs import CostKind
from ampsweep.analysis.front import Front, FrontArm, Relation
from ampsweep.analysis.statistics import Estimate
from ampsweep.report.estimate_text import estimate, ratio_figure
from ampsweep.report.figures.figure import Layout, NoFigure, PanelFigure, Style, Trace, plotly_text, value_axis
from ampsweep.report.panels import Panel
from ampsweep.report.sentences.front import COSTS, beaten_by
from ampsweep.report.table import Table
from ampsweep.report.units import AxisUnit, axis_unit
from ampsweep.report.workload_data import WorkloadData
from ampsweep.text import GIB, duration, milliseconds, num_bytes, number

_SYMBOLS: Final[dict[Relation, str]] = {
    "same": "circle",
    "worse": "triangle-up",
    "better": "triangle-down",
    "open": "diamond",
    "not measured": "square",
}
"""The marker of a final loss against the baseline's."""

_UNITS: Final[dict[CostKind, str]] = {
    "time to loss": "s",
    "energy to loss": "J",
    "step time": "ms",
    "energy of a sample": "J",
}

_MAX_NAMED: Final = 6
"""Arms that are named at their markers; more have numbers there, which the legend explains."""
_PLACES: Final = ("top center", "bottom center", "middle right", "middle left", "top right", "bottom left")
_SIZE_PX: Final = (900.0, 330.0)
"""About the size of the area that is drawn in, in pixels, by which texts are kept off each other."""
_CHARACTER_PX: Final = 7.5
_LINE_PX: Final = 17.0
_MARGIN: Final = 0.12
"""Share of the range that is left free on each side of the arms."""

_Box = tuple[float, float, float, float]


def show_front(panel: Panel, data: WorkloadData, style: Style) -> PanelFigure | NoFigure:
    """An arm a marker: cost to the right, peak memory up, the final loss by its symbol, hollow where it is beaten."""
    front = data.workload.verdict.front
    if front is None:
        return NoFigure("fewer than two arms have a speed and a peak memory in their pairs with the baseline")
    limit = data.workload.verdict.recommendation.goal.memory_bytes
    unit = axis_unit([one.peak_bytes / GIB for one in front.arms], "GiB")
    points = [(one.cost, one.peak_bytes / GIB * unit.factor) for one in front.arms]
    ranges = [_range([point[axis] for point in points]) for axis in (0, 1)]
    names = [one.arm if len(front.arms) <= _MAX_NAMED else str(index) for index, one in enumerate(front.arms, start=1)]
    places = _text_places(points, names, ranges)
    traces = [_line(front, points)]
    traces += [
        _marker(one, point, name, place, front, style)
        for one, point, name, place in zip(front.arms, points, names, places, strict=True)
    ]
    layout: Layout = {
        "xaxis": value_axis(f"{COSTS[front.cost]} ({_UNITS[front.cost]})", range=ranges[0]),
        "yaxis": value_axis("", range=ranges[1]) | {"title": {"text": f"peak memory ({unit.unit})", "standoff": 14}},
        "height": 420 + 14 * len(front.arms) * (len(front.arms) > _MAX_NAMED),
        "showlegend": len(front.arms) > _MAX_NAMED,
        "shapes": [] if limit is None else [_limit(limit, unit)],
    }
    remarks = [] if not front.without else [f"{', '.join(front.without)}: no {COSTS[front.cost]} or no peak memory"]
    remarks += [] if limit is None else [f"the dotted line is the memory given, {num_bytes(limit)}"]
    return PanelFigure(traces, layout, _table(front), tuple(remarks))


def _marker(one: FrontArm, point: tuple[float, float], name: str, place: str, front: Front, style: Style) -> Trace:
    drawn, is_open = style.arms[one.arm], one.beaten is not None
    numbered = name != one.arm
    trace: Trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [point[0]],
        "y": [point[1]],
        "name": plotly_text(f"{name}  {one.arm}" if numbered else one.arm),
        "text": [plotly_text(name)],
        "textposition": place,
        "cliponaxis": False,
        "hovertext": [_hover(one, front)],
        "hoverinfo": "text+name",
        "marker": {
            "color": drawn.colour,
            "symbol": _SYMBOLS[one.loss] + ("-open" if is_open else ""),
            "size": 15,
            "line": {"width": 3, "color": drawn.colour} if is_open else {"width": 1.5, "color": "#333333"},
        },
        "meta": {"arm": one.arm, "over_seeds": True},
    }
    ends = None if one.cost_ratio is None else one.cost_ratio.interval
    if ends is not None and one.cost_ratio is not None:
        low, high = (one.cost * end / one.cost_ratio.value for end in ends)
        trace["error_x"] = {
            "type": "data",
            "array": [high - one.cost],
            "arrayminus": [one.cost - low],
            "color": drawn.colour,
            "thickness": 1.5,
            "width": 4,
        }
    return trace


def _line(front: Front, points: Sequence[tuple[float, float]]) -> Trace:
    """The line through the arms of the front whose loss is not worse, as far as none of them beats them otherwise."""
    both = zip(front.arms, points, strict=True)
    on_front = sorted((point, one.arm) for one, point in both if one.beaten is None and one.loss != "worse")
    line: list[tuple[tuple[float, float], str]] = []
    for point, arm in on_front:
        if not line or point[1] < line[-1][0][1]:
            line.append((point, arm))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [point[0] for point, _ in line],
        "y": [point[1] for point, _ in line],
        "name": "front",
        "showlegend": False,
        "hoverinfo": "skip",
        "line": {"color": "#888888", "width": 1.5, "dash": "dash"},
        "meta": {"arms": [arm for _, arm in line], "over_seeds": True},
    }


def _limit(limit: float, unit: AxisUnit) -> Layout:
    height = limit / GIB * unit.factor
    return {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": height, "y1": height, "line": {"dash": "dot"}}


def _range(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    spare = _MARGIN * (high - low) or _MARGIN * high
    return [low - spare, high + spare]


def _text_places(
    points: Sequence[tuple[float, float]], texts: Sequence[str], ranges: Sequence[Sequence[float]]
) -> list[str]:
    """The place of each text beside its marker that covers least of the markers and the texts placed before it."""
    centres = [
        (
            _SIZE_PX[0] * (x - ranges[0][0]) / (ranges[0][1] - ranges[0][0]),
            _SIZE_PX[1] * (y - ranges[1][0]) / (ranges[1][1] - ranges[1][0]),
        )
        for x, y in points
    ]
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in centres]
    places = []
    for (x, y), text in zip(centres, texts, strict=True):
        boxes = {place: _box(x, y, _CHARACTER_PX * len(text), place) for place in _PLACES}
        best = min(
            _PLACES, key=lambda place: sum(_overlap(boxes[place], other) for other in taken) + _out(boxes[place])
        )
        taken.append(boxes[best])
        places.append(best)
    return places


def _box(x: float, y: float, width: float, place: str) -> _Box:
    vertical, horizontal = place.split()
    low = y + {"top": 9.0, "middle": -_LINE_PX / 2, "bottom": -9.0 - _LINE_PX}[vertical]
    left = x + {"left": -10.0 - width, "center": -width / 2, "right": 10.0}[horizontal]
    return left, low, left + width, low + _LINE_PX


def _overlap(one: _Box, other: _Box) -> float:
    return max(0.0, min(one[2], other[2]) - max(one[0], other[0])) * max(
        0.0, min(one[3], other[3]) - max(one[1], other[1])
    )


def _out(one: _Box) -> float:
    """The area of a text beyond the left and right edges, where it would be cut off."""
    return _LINE_PX * (max(0.0, -one[0]) + max(0.0, one[2] - _SIZE_PX[0]))


def _hover(one: FrontArm, front: Front) -> str:
    beside = "" if one.cost_ratio is None else f", {ratio_figure(one.cost_ratio)} of the baseline's"
    parts = [
        _cost(one.cost, front.cost) + beside,
        num_bytes(one.peak_bytes),
        *([] if one.loss_gap is None else [f"loss gap {_gap(one.loss_gap)}"]),
        "on the front" if one.beaten is None else plotly_text(f"beaten by {beaten_by(one.beaten, front.cost)}"),
    ]
    return "<br>".join(parts)


def _table(front: Front) -> Table:
    numbered = len(front.arms) > _MAX_NAMED
    headers = ("arm", *(["number"] if numbered else []), COSTS[front.cost], "over the baseline's", "peak memory")
    headers += ("loss gap", "loss", "front")
    rows = tuple(
        (
            one.arm,
            *([str(index)] if numbered else []),
            _cost(one.cost, front.cost),
            "-" if one.cost_ratio is None else ratio_figure(one.cost_ratio),
            num_bytes(one.peak_bytes),
            "-" if one.loss_gap is None else _gap(one.loss_gap),
            one.loss,
            "yes" if one.beaten is None else f"beaten by {beaten_by(one.beaten, front.cost)}",
        )
        for index, one in enumerate(front.arms, start=1)
    )
    return Table(headers, (False, *(True,) * (len(headers) - 3), False, False), rows)


def _cost(value: float, kind: CostKind) -> str:
    if kind == "step time":
        return milliseconds(value)
    return duration(value) if kind == "time to loss" else f"{number(value)} J"


def _gap(of: Estimate) -> str:
    value, ends = estimate(of, digits=2, sign=True)
    return value if ends is None else f"{value} [{ends[0]}, {ends[1]}]"
