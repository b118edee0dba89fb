"""One colour a precision mode, the same in every report."""

from typing import Final

MODE_COLOURS: Final[dict[str, str]] = {
    "fp32": "#999999",
    "tf32": "#e69f00",
    "amp_bf16": "#56b4e9",
    "amp_fp16": "#d55e00",
    "pure_bf16": "#009e73",
    "pure_fp16": "#cc79a7",
}
"""Colours of the palette of M. Okabe and K. Ito, Color Universal Design (2008), told apart by colour-blind readers too;
those legible on a light and on a dark ground."""


def arm_colour(arm: str) -> str | None:
    """Colour of an arm: that of the mode it started from (`amp_bf16+cache_enabled=false`: amp_bf16), if it has one."""
    return MODE_COLOURS.get(arm.partition("+")[0])
