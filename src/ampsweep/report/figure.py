"""The figure of a report: what it shows, whatever draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.report.tables import Table

INK: Final = "#333333"
"""The colour of outlines; a dark page draws them light."""

Number = float | int | None
"""A value on an axis; None is a gap."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis, of numbers or of rows."""

    title: str = ""
    rows: tuple[str, ...] = ()
    """The rows from the top, where it is no axis of numbers."""
    log: bool = False
    from_zero: bool = False
    range: tuple[float, float] | None = None
    """Ends that are not those of the values."""
    ticks: Mapping[float, str] | None = None
    """Places of ticks and their labels; None: where they suit the values."""
    power: bool = False
    """Ticks are powers of ten."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The arms and seeds that a mark belongs to, by which a page hides it."""

    arm: str | None = None
    arms: tuple[str, ...] = ()
    """The arm of each point, where they are of several."""
    seed: int | None = None
    seeds: tuple[int, ...] = ()
    """The seed of each point, where they are of several."""
    only_alone: bool = False
    """Drawn only where its seed is chosen."""
    over_seeds: bool = False
    """Hidden where a seed is chosen: it says something of their spread."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A bar a row, in the colour of what they are parts of."""

    name: str
    rows: Sequence[str]
    values: Sequence[Number]
    texts: Sequence[str] = ()
    hover: Sequence[str] = ()
    colour: str
    patterns: Sequence[str] = ()
    """One a bar: a stripe tells what is predicted from what is measured."""
    inside: bool = False
    """The texts stand inside the bars, or are left out."""
    owner: Owner = Owner()


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Scatter, a line through them, or both."""

    name: str
    x: Sequence[Number | str]
    y: Sequence[Number | str]
    colour: str
    line: float = 0.0
    """Width in pixels; 0: no line."""
    dash: str = "solid"
    symbols: Sequence[str] = ()
    """One a point, or one for all; none: no markers."""
    size: int = 9
    outlined: bool = False
    hollow: bool = False
    opacity: float = 1.0
    texts: Sequence[str] = ()
    """Beside the points."""
    label: str = ""
    """Its name where a pointer is over it, if that says more than the legend's."""
    hover: Sequence[str] = ()
    interval: Literal["x", "y"] | None = None
    ends: Sequence[tuple[float, float]] = ()
    """The ends of the interval of each point along that axis."""
    legend: bool = True
    hidden: bool = False
    """Drawn once its name in the legend is chosen."""
    group: str = ""
    """Marks of one group are shown and hidden together."""
    owner: Owner = Owner()


@dataclass(frozen=True, kw_only=True)
class Area:
    """The area between two lines."""

    x: Sequence[Number]
    low: Sequence[Number]
    high: Sequence[Number]
    colour: str
    group: str
    owner: Owner = Owner()


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Cells in rows, coloured by a share of a whole, whose logarithm to base ten is drawn."""

    x: Sequence[float]
    logs: Sequence[Sequence[Number]]
    """By row, from -5 (and less) to 0."""
    texts: Sequence[Sequence[str]]
    names: Sequence[str]
    """Names of the rows, in full."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A dotted line across the figure at a value of the x or the y axis."""

    at: float
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True, kw_only=True)
class Margin:
    """A shaded stretch of the x axis in one row."""

    row: int
    low: float
    high: float


Mark = Bars | Scatter | Area | Heat


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, with the question that it answers and its figures as a table."""

    key: str
    """Names it in files and links: lower case, unique within its section."""
    title: str
    question: str = ""
    note: str = ""
    """A hint for reading it."""
    remarks: tuple[str, ...] = ()
    """The limits of what it shows, a sentence each."""
    table: Table | None = None
    wide: bool = False
    x: Axis = Axis()
    y: Axis = Axis()
    marks: Sequence[Mark] = ()
    rules: Sequence[Rule] = ()
    margins: Sequence[Margin] = ()
    stacked: bool = False
    """Bars of one row stand one after another, not below each other."""
    legend: bool = False
    height: int = 340
    """Pixels."""


@dataclass(frozen=True)
class NoFigure:
    """The reason, a clause, why there is nothing to show."""

    reason: str
