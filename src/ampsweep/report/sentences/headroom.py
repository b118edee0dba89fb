"""The headroom of a training in low-precision formats, in words."""

import math
from collections.abc import Mapping
from typing import Final

from ampsweep.analysis.headroom import MAX_LOST_PCT, Headroom, Obstacle
from ampsweep.numeric_formats import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FORMATS
from ampsweep.record.diagnosis import Diagnosis
from ampsweep.record.numerics import TensorKind
from ampsweep.text import number, percent, plural

HEADING: Final = "Headroom in low precision"
KIND_NAMES: Final[dict[TensorKind, str]] = {
    "activation": "activations",
    "activation_gradient": "gradients of activations",
    "gradient": "gradients of parameters",
    "weight": "weights",
    "update": "updates",
}
"""The kinds of tensors in prose."""
_CASTS_OF: Final = {
    FLOAT8_E4M3.name: f"{FLOAT8_E4M3.name} for activations and weights",
    FLOAT8_E5M2.name: f"{FLOAT8_E5M2.name} for gradients of activations",
}


def headroom_lines(found: Mapping[str, Headroom], diagnosis: Diagnosis | None = None) -> list[str]:
    """A sentence for each format.

    Args:
        diagnosis: of the training; a format that it found at fault does not work, though layers return what fits.
    """
    faults = {} if diagnosis is None else _faults(diagnosis)
    return [
        _found_faulty(one, faults[one.format]) if one.format in faults else headroom_line(one) for one in found.values()
    ]


def _faults(of: Diagnosis) -> dict[str, int]:
    """By format the number of the finding of an operator that makes inf or NaN in it at any scale."""
    found: dict[str, int] = {}
    for place, one in enumerate(of.findings, start=1):
        if one.complaint == "loss" and one.evidence.get("phase") in ("forward", "backward"):
            found.setdefault(str(one.evidence["dtype"]), place)
    return found


def _found_faulty(of: Headroom, number_of_finding: int) -> str:
    line = headroom_line(of)
    if of.verdict == "does_not_work":
        return line
    fits = line.removeprefix(of.format)
    return (
        f"{of.format} does not work until finding {number_of_finding} is mended; by what layers return, it then{fits}"
    )


def summary_lines(found: Mapping[str, Headroom]) -> list[str]:
    """Two sentences at most: what float16 would do, and which of the other formats would work."""
    lines = [headroom_line(found[FLOAT16.name])] if FLOAT16.name in found else []
    others = [one for one in found.values() if one.format != FLOAT16.name]
    if others:
        lines.append(", ".join(f"{one.format}: {_in_short(one)}" for one in others))
    return lines


def headroom_line(of: Headroom) -> str:
    """Say whether a format has room for a training, within which scales, and what is in its way."""
    name = _CASTS_OF.get(of.format, of.format)
    match of.verdict:
        case "works":
            return f"{name} works{_room(of)}"
        case "works_with_tensor_scales":
            return f"{name} works if each tensor has a scale of its own"
        case "works_below":
            return (
                f"{name} works with scales up to {scale_text(of.max_scale)}{_gradients_of(of.max_scale_layer)}: from "
                f"{scale_text(of.scale)} the scaler skips {plural(_num_skipped(of), 'step')} until it is there, from "
                f"precision.init_scale={of.best_scale:g} none"
            )
        case "works_above":
            return (
                f"{name} works with scales from {scale_text(of.min_scale)} to {scale_text(of.max_scale)}: with "
                f"{scale_text(of.scale)} gradients of {layer_text(of.min_scale_layer or '')} become zero, with "
                f"precision.init_scale={of.best_scale:g} they do not"
            )
        case "does_not_work":
            first, more = of.obstacles[0], len({one.layer for one in of.obstacles} - {of.obstacles[0].layer})
            rest = f", and {plural(more, 'more layer')} in its way" if more else ""
            return f"{name} does not work: {_obstacle(first, of)}{rest}"


def layer_text(layer: str) -> str:
    """The name of a module or parameter; the model itself has none."""
    return layer or "the model"


def scale_text(value: float) -> str:
    """A scale or a magnitude, which may be of any size: powers of two as they are, others with three digits.

    >>> scale_text(65536.0), scale_text(526647.6), scale_text(0.5), scale_text(5.27e16)
    ('65,536', '527,000', '0.500', '5.3e+16')
    """
    if value >= 1e7:
        return f"{value:.1e}"
    if value >= 1000:
        return f"{value if math.frexp(value)[0] == 0.5 else float(f'{value:.3g}'):,.0f}"
    return number(value)


def _room(of: Headroom) -> str:
    if of.format == BFLOAT16.name:
        return ": its range is that of float32"
    told = []
    if math.isfinite(of.max_scale):
        told.append(
            f"with scales from {scale_text(of.min_scale)} to {scale_text(of.max_scale)}, of which "
            f"{scale_text(of.scale)} is one"
        )
    if of.fullest_pct is not None and of.fullest_layer is not None:
        told.append(f"the largest value, in {layer_text(of.fullest_layer)}, is {percent(of.fullest_pct)} of its limit")
    return (" " if told[:1] and told[0].startswith("with") else ": ") + "; ".join(told) if told else ""


def _num_skipped(of: Headroom) -> int:
    return max(round(math.log2(of.scale / of.best_scale)), 1)


def _gradients_of(layer: str | None) -> str:
    return "" if layer is None else f", where gradients of {layer_text(layer)} end"


def _obstacle(one: Obstacle, of: Headroom) -> str:
    layer, kind = layer_text(one.layer), KIND_NAMES[one.tensor]
    match one.kind:
        case "too_large":
            largest = number(FORMATS[of.format].max)
            reached = "inf" if math.isinf(one.max_abs) else scale_text(one.max_abs)
            return f"{kind} of {layer} reach {reached}, above its largest number, {largest}"
        case "vanishes":
            return f"{kind} of {layer} are so small that {_lost(one)} becomes zero"
        case "too_wide" if of.max_scale_layer is not None:
            return (
                f"with a scale of {scale_text(of.best_scale)}, the largest for gradients of "
                f"{layer_text(of.max_scale_layer)}, {_lost(one)} of {kind} of {layer} becomes zero"
            )
        case "too_wide":
            return f"{kind} of {layer} have a wider range than one scale covers: {_lost(one)} becomes zero"


def _lost(one: Obstacle) -> str:
    return f"{percent(one.lost_pct)} of the sum of their magnitudes (above {MAX_LOST_PCT:.0f}%)"


def _in_short(of: Headroom) -> str:
    match of.verdict:
        case "works_with_tensor_scales":
            return "works with a scale for each tensor"
        case "does_not_work":
            return f"does not work ({layer_text(of.obstacles[0].layer)})"
        case "works_below":
            return f"works with scales up to {scale_text(of.max_scale)}"
        case "works_above":
            return f"works with scales from {scale_text(of.min_scale)}"
        case "works":
            return "works"
