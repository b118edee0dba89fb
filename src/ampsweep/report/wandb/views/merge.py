"""What is saved over a page that exists: our parts brought up to date, everything else as people left it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from ampsweep.report.wandb.views.marks import Json, digest, remarked, saved_in


@dataclass(frozen=True)
class Part:
    """Something on a page that is changed as a whole."""

    key: str | None
    """None: not ours."""
    content: Json
    own: Json
    """What of the content is ours; people place, size and colour it."""
    where: str = ""
    """Heading of its section."""


class Page(Protocol):
    """The JSON of a page, as parts."""

    @property
    def spec(self) -> Json: ...

    @property
    def about(self) -> str | None:
        """The text that says what the page is, with its mark; None where somebody has taken it away."""

    def parts(self) -> list[Part]: ...

    def with_parts(self, parts: Sequence[Part], about: str) -> Self:
        """The same page with other parts, and another text about it."""


P = TypeVar("P", bound=Page)


def fresh(page: P) -> P:
    """A new page as it is saved first: with the digests of its parts."""
    assert page.about is not None
    parts = page.parts()
    return page.with_parts(parts, remarked(page.about, digests(parts)))


def updated(there: P, wanted: P) -> P | None:
    """The page that is there, brought up to date; None where its mark is gone, and with it our part in it."""
    if there.about is None:
        return None
    parts, saved = merge(there.parts(), wanted.parts(), saved_in(there.about))
    return there.with_parts(parts, remarked(there.about, saved))


def digests(parts: Sequence[Part]) -> dict[str, str]:
    """Digests of our parts by key."""
    return {part.key: digest(part.own) for part in parts if part.key is not None}


def merge(there: Sequence[Part], wanted: Sequence[Part], saved: Mapping[str, str]) -> tuple[list[Part], dict[str, str]]:
    """The parts of a page, and the digests to be saved with them.

    A part is brought up to date, or dropped where it is no longer wanted, if it still is as it was `saved`. One that
    was saved and is not there any more has been deleted, and stays so. What was never saved is new.
    """
    ours = {part.key: part for part in wanted if part.key is not None}
    current = digests(wanted)
    parts: list[Part] = []
    now = dict(saved)
    for part in there:
        if part.key is None or digest(part.own) != saved.get(part.key):
            parts.append(part)
        elif part.key in ours:
            parts.append(replace(part, content=part.content | ours[part.key].own, own=ours[part.key].own))
            now[part.key] = current[part.key]
        else:
            now.pop(part.key, None)
    for key, part in ours.items():
        if key not in saved:
            parts.insert(_end_of(part.where, parts), part)
            now[key] = current[key]
    return parts, now


def _end_of(where: str, parts: Sequence[Part]) -> int:
    """The place after the last part under a heading; the end, where there is none."""
    return max((place for place, part in enumerate(parts, start=1) if part.where == where), default=len(parts))
