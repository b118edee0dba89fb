"""The colours of arms, formats and memory categories, the same in every report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ampsweep.config.claims import named_mode
from ampsweep.config.modes import MODES
from ampsweep.memory_categories import MEMORY_CATEGORIES

MODE_COLOURS: Final[dict[str, str]] = {name: mode.colour for name, mode in MODES.items()}
OTHER_COLOUR: Final = "#8073ac"
"""Arms of unknown modes, once the modes' own colours are used up."""

FORMAT_COLOURS: Final[dict[str, str]] = {
    "float16": MODE_COLOURS["amp_fp16"],
    "bfloat16": MODE_COLOURS["amp_bf16"],
    "float8_e4m3fn": "#cc79a7",
    "float8_e5m2": "#0072b2",
}
"""Numeric formats, in the colour of the autocast mode that computes in them; others from the same palette."""

_LIGHT: Final = ("#77aadd", "#44bb99", "#bbcc33", "#ee8866", "#ffaabb", "#aaaa00", "#eedd88", "#99ddff", "#dddddd")
CATEGORY_COLOURS: Final = dict(zip(MEMORY_CATEGORIES, _LIGHT, strict=True)) | {"unattributed": "#99ddff"}
"""The light scheme of P. Tol, Colour Schemes (2021), made for areas with dark labels; no mode has its colours."""

_MAX_BENEATH: Final = 3
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "cross")
_DARKER: Final = 0.7


@dataclass(frozen=True)
class ArmStyle:
    """The look of an arm in figures. Arms of one mode share its colour and differ in dash and symbol."""

    colour: str
    dash: str
    symbol: str
    beneath: int  # the number of arms drawn over it: it is drawn larger, so that it shows where they cover it


def arm_colour(arm: str) -> str | None:
    """The colour of an arm's mode; None if the mode is unknown."""
    mode = named_mode(arm)
    return None if mode is None else mode.colour


def arm_styles(arms: Iterable[str]) -> dict[str, ArmStyle]:
    used: Counter[str] = Counter()
    styles = {}
    names = dict.fromkeys(arms)
    taken = {arm_colour(arm) for arm in names}
    free = (colour for colour in MODE_COLOURS.values() if colour not in taken)
    for rank, arm in enumerate(names):
        colour = arm_colour(arm) or next(free, OTHER_COLOUR)
        nth = used[colour]
        used[colour] += 1
        styles[arm] = ArmStyle(
            colour=colour,
            dash=_DASHES[nth % len(_DASHES)],
            symbol=_SYMBOLS[rank % len(_SYMBOLS)],
            beneath=max(_MAX_BENEATH - rank, 0),
        )
    return styles


def colours_without_dashes(styles: Mapping[str, ArmStyle]) -> dict[str, str]:
    """A distinct colour for each arm: arms of one mode get darker shades of its colour."""
    return {arm: _darkened(style.colour, _DARKER ** _DASHES.index(style.dash)) for arm, style in styles.items()}


def _darkened(colour: str, share: float) -> str:
    return "#" + "".join(f"{round(part * share):02x}" for part in bytes.fromhex(colour[1:]))
