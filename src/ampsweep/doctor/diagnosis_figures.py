"""The figures of a diagnosis: the error's growth through the net, and the loss beside that in float32."""

import math
from typing import Any, Final

from ampsweep.analysis.headroom import layer_text
from ampsweep.doctor.diagnosis import Diagnosis
from ampsweep.report.figure import Axis, Figure, Scatter
from ampsweep.report.palette import MODE_COLOURS, OTHER_COLOUR, arm_colour

ERROR_GROWTH: Final = "numerics/error_growth"
"""The fact with a point for each operator: `module`, `operator`, the relative `error` of what it returns against
float32, and `explained`, what the dtype and the errors of its inputs explain of it."""
LOSSES: Final = "loss/steps"
"""The fact with a point for each step: `step`, the loss of the training (`own`) and that in float32 (`baseline`)."""
_BASELINE: Final = "fp32"


def error_growth(of: Diagnosis) -> Figure | None:
    """The error of each operator's result through the net; None where it was not measured."""
    points: Any = of.facts.get(ERROR_GROWTH)
    if not points:
        return None
    texts = [f"{layer_text(one['module'])}: {one['operator']}" for one in points]
    places = list(range(1, len(points) + 1))
    infinite = next((text for text, one in zip(texts, points, strict=True) if not math.isfinite(one["error"])), None)
    remark = f"From {infinite} on there are values that are not finite, which are not drawn."
    explained, own = ([_finite(one[key]) or None for one in points] for key in ("explained", "error"))
    return Figure(
        key="error-growth",
        title="Growth of the error through the net",
        question="Where does the error become larger than the dtype explains?",
        marks=[
            Scatter(
                name="explained by dtype and inputs",
                x=places,
                y=explained,
                colour=MODE_COLOURS[_BASELINE],
                line=2,
                dash="dash",
                hover=texts,
            ),
            Scatter(name=of.arm, x=places, y=own, colour=_colour(of), line=2, symbols=["circle"], size=5, hover=texts),
        ],
        x=Axis(title="operator of the step"),
        y=Axis(title="relative error", log=True, power=True),
        remarks=(remark,) if infinite is not None else (),
        legend=True,
    )


def losses(of: Diagnosis) -> Figure | None:
    """The loss of each step beside that in float32; None where it was not measured."""
    points: Any = of.facts.get(LOSSES)
    if not points:
        return None
    lines = ((_BASELINE, "baseline", MODE_COLOURS[_BASELINE], "dash"), (of.arm, "own", _colour(of), "solid"))
    known = [value for _, key, *_ in lines for one in points if (value := _finite(one[key])) is not None]
    wide = bool(known) and min(known) > 0 and max(known) > 10 * min(known)
    remarks = [
        f"The loss of {arm} is {one[key]} from step {one['step']} on."
        for arm, key, *_ in reversed(lines)
        if (one := next((one for one in points if not math.isfinite(one[key])), None)) is not None
    ]
    return Figure(
        key="losses",
        title="Loss",
        question="Does it learn as float32 does?",
        marks=[
            Scatter(
                name=arm,
                x=[one["step"] for one in points],
                y=[_finite(one[key]) for one in points],
                colour=colour,
                line=2,
                dash=dash,
                symbols=["circle"],
                size=5,
            )
            for arm, key, colour, dash in lines
        ],
        x=Axis(title="step"),
        y=Axis(title="loss", log=wide),
        remarks=tuple(remarks),
        legend=True,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _colour(of: Diagnosis) -> str:
    return arm_colour(of.arm) or OTHER_COLOUR
