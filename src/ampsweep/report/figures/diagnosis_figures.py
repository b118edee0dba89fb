"""The figures of a diagnosis: the error's growth through the net, and the loss beside that in float32."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ampsweep.config.modes import MODES
from ampsweep.record.diagnosis import Diagnosis
from ampsweep.report.figures.figure import Layout, PanelFigure, Trace, plotly_text, value_axis
from ampsweep.report.palette import MODE_COLOURS, OTHER_COLOUR, arm_colour
from ampsweep.report.sentences.headroom import layer_text

ERROR_GROWTH: Final = "numerics/error_growth"
"""The fact with a point for each operator: `module`, `operator`, the relative `error` of what it returns against
float32, and `explained`, what the dtype and the errors of its inputs explain of it."""
LOSSES: Final = "loss/steps"
"""The fact with a point for each step: `step`, the loss of the training (`own`) and that in float32 (`baseline`)."""
_BASELINE: Final = "fp32"

Point = Mapping[str, Any]


def error_growth(of: Diagnosis) -> PanelFigure | None:
    """The error of each operator's result through the net; None where it was not measured."""
    points = _points(of, ERROR_GROWTH)
    if not points:
        return None
    own, explained = ([_figure(one.get(key)) for one in points] for key in ("error", "explained"))
    texts = [f"{layer_text(str(one.get('module') or ''))}: {one.get('operator') or '?'}" for one in points]
    common: Trace = {
        "type": "scatter",
        "x": list(range(1, len(points) + 1)),
        "hovertext": [plotly_text(text) for text in texts],
        "hovertemplate": "%{hovertext}<br>%{y:.2e}",
    }
    traces = [
        {
            **common,
            "mode": "lines",
            "y": [value if value else None for value in explained],
            "name": "explained by dtype and inputs",
            "line": {"color": MODE_COLOURS[_BASELINE], "width": 2, "dash": "dash"},
        },
        {
            **common,
            "mode": "lines+markers",
            "y": [value if value else None for value in own],
            "name": plotly_text(of.arm),
            "line": {"color": _colour(of), "width": 2},
            "marker": {"size": 5, "color": _colour(of)},
        },
    ]
    remarks = []
    infinite = next((text for text, one in zip(texts, points, strict=True) if _is_infinite(one.get("error"))), None)
    if infinite is not None:
        remarks.append(f"from {infinite} on there are values that are not finite, which are not drawn")
    return PanelFigure(
        traces,
        _layout("operator of the step", "relative error", dtick=1, exponentformat="power"),
        remarks=tuple(remarks),
    )


def losses(of: Diagnosis) -> PanelFigure | None:
    """The loss of each step beside that in float32; None where it was not measured."""
    points = _points(of, LOSSES)
    if not points:
        return None
    own, baseline = ([_figure(one.get(key)) for one in points] for key in ("own", "baseline"))
    steps = [one.get("step") for one in points]
    traces: list[Trace] = [
        _losses(steps, baseline, _BASELINE, MODES[_BASELINE].colour, "dash"),
        _losses(steps, own, of.arm, _colour(of), "solid"),
    ]
    remarks = [
        f"the loss of {arm} is {one.get(key)} from step {one.get('step')} on"
        for arm, key in ((of.arm, "own"), (_BASELINE, "baseline"))
        if (one := next((one for one in points if _is_infinite(one.get(key))), None)) is not None
    ]
    positive = all(value > 0 for value in (*own, *baseline) if value is not None)
    return PanelFigure(
        traces,
        _layout("step", "loss", **({"dtick": "D2", "tickformat": "~g"} if positive else {"type": "linear"})),
        remarks=tuple(remarks),
    )


def _losses(steps: Sequence[Any], values: Sequence[float | None], arm: str, colour: str, dash: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(steps),
        "y": list(values),
        "name": plotly_text(arm),
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 5, "color": colour},
    }


def _points(of: Diagnosis, key: str) -> list[Point]:
    found = of.facts.get(key)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _figure(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _is_infinite(value: Any) -> bool:
    """Tell whether a value is one that is not finite, by its name or as a number."""
    return value in ("inf", "-inf", "nan") or (isinstance(value, float) and not math.isfinite(value))


def _colour(of: Diagnosis) -> str:
    return arm_colour(of.arm) or OTHER_COLOUR


def _layout(x: str, y: str, **of_y: Any) -> Layout:
    return {
        "xaxis": value_axis(x),
        "yaxis": value_axis(y, **{"type": "log", **of_y}),
        "height": 340,
        "hovermode": "closest",
    }
