"""One colour a precision mode, the same in every report."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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


OTHER_COLOUR: Final = "#8073ac"
"""Arms of no known mode."""

CATEGORY_COLOURS: Final[dict[str, str]] = {
    "parameters": "#77aadd",
    "gradients": "#44bb99",
    "optimizer_state": "#bbcc33",
    "activations": "#ee8866",
    "autocast_weights": "#ffaabb",
    "temporary": "#eedd88",
    "other": "#dddddd",
}
"""Categories of memory: the light scheme of P. Tol, Colour Schemes (2021), made for labelled areas with dark text on
them; none of it is a mode's colour."""

_MAX_BENEATH: Final = 3
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross")
_PATTERNS: Final = ("", "/", "x", ".", "-")


@dataclass(frozen=True)
class ArmStyle:
    """The look of an arm in figures. Arms of one mode share its colour and differ in dash and pattern.

    `beneath` counts the arms drawn over it: it is drawn larger by that, so that it shows where they cover it.
    """

    colour: str
    dash: str
    symbol: str
    pattern: str
    beneath: int


def arm_styles(arms: Iterable[str]) -> dict[str, ArmStyle]:
    """A style for each of `arms`."""
    used: Counter[str] = Counter()
    styles = {}
    for rank, arm in enumerate(dict.fromkeys(arms)):
        colour = arm_colour(arm) or OTHER_COLOUR
        nth = used[colour]
        used[colour] += 1
        styles[arm] = ArmStyle(
            colour=colour,
            dash=_DASHES[nth % len(_DASHES)],
            symbol=_SYMBOLS[rank % len(_SYMBOLS)],
            pattern=_PATTERNS[nth % len(_PATTERNS)],
            beneath=max(_MAX_BENEATH - rank, 0),
        )
    return styles
