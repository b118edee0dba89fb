"""A report as a document: built once from numbers by what knows the kind of report, shown by renderers that do not.

Texts are whole sentences (or titles), plain, in no markup. A renderer knows the blocks below and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ampsweep.report.figure import Figure
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Scalar, Table, Tone


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str
    kind: Literal["headline", "body", "note"] = "body"
    """`headline`: the answer of its section; `note`: what a reader may pass over."""
    arm: str | None = None
    """The arm that an answer names."""


@dataclass(frozen=True)
class Item:
    """A line of a list, about an arm or a topic that stands before it."""

    text: str
    label: str = ""
    arm: str | None = None
    """Stands before the text, in its colour."""
    tone: Tone | None = None


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Item, ...]
    title: str = ""


@dataclass(frozen=True)
class Code:
    """Text to be copied as it stands."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a document; a part without a title is shown without one."""

    title: str = ""
    blocks: tuple["Block", ...]
    key: str = ""
    """Names it in links; empty: nothing links to it."""
    arm: str | None = None
    """The arm that the section is about."""
    badge: tuple[str, Tone] | None = None
    """A word beside the title, such as the standing of the arm."""
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    """What its runs have in common, by which a page hides it."""
    folded: bool = False
    """True for grounds and details: a page folds them, a terminal leaves them out."""
    kind: Literal["plain", "card"] = "plain"
    """`card`: a part that stands for itself, such as the verdict on one workload."""


Block = Prose | Items | Table | Figure | Code | Section


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str = ""
    sections: tuple[Section, ...]
    arms: Mapping[str, ArmStyle] = field(default_factory=dict)
    """The look of each arm that it names, in their order."""
    seeds: tuple[int, ...] = ()
    """The seeds that a reader can choose."""
    summary: Mapping[str, Scalar] = field(default_factory=dict)
    """The main figures by flat names, for a W&B run."""
    data: Any = None
    """What the document was made from, for JSON."""
