"""The merge of a new page into one that exists: our parts are brought up to date, all else stays as people left it.

A page tells which of its parts are ours, and what they were when they were saved, by marks: link definitions to
nowhere, which no Markdown renderer shows, such as `[//]: # (ampsweep about memory=1a2b3c4d)`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, TypeVar

Json = dict[str, Any]

PREFIX: Final = "ampsweep-"
ABOUT: Final = "about"

_MARK: Final = re.compile(r"\[//\]: # \(ampsweep (\S+)([^)\n]*)\)")


def marked(text: str, key: str, saved: Mapping[str, str] | None = None) -> str:
    """Markdown with the mark of the part `key`; `saved` are the digests of all parts of the page."""
    return f"{text}\n\n{_mark(key, saved or {})}"


def key_in(text: str) -> str | None:
    """The part that a Markdown text is; None for a text that is not ours."""
    found = _MARK.search(text)
    return None if found is None else found[1]


def saved_in(text: str) -> dict[str, str]:
    """The digests that the mark in a Markdown text tells."""
    found = _MARK.search(text)
    return {} if found is None else dict(pair.split("=", 1) for pair in found[2].split() if "=" in pair)


def remarked(text: str, saved: Mapping[str, str]) -> str:
    """The text with other digests in its mark."""
    return _MARK.sub(lambda found: _mark(found[1], saved), text, count=1)


def digest(content: Any) -> str:
    """Eight hex digits, equal for equal JSON; W&B's app adds references, which mean nothing."""
    return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()[:8]


def _mark(key: str, saved: Mapping[str, str]) -> str:
    return f"[//]: # (ampsweep {' '.join([key, *(f'{name}={value}' for name, value in saved.items())])})"


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items() if key != "ref"}
    return [_plain(value) for value in content] if isinstance(content, list) else content


@dataclass(frozen=True)
class PagePart:
    """Something on a page that is changed as a whole."""

    key: str | None
    """None: not ours."""
    content: Json
    own: Json
    """The part of the content that is ours; people place, size and colour it."""
    where: str = ""
    """Heading of its section."""


class Page(Protocol):
    """The JSON of a page, as parts."""

    @property
    def spec(self) -> Json: ...

    @property
    def about(self) -> str | None:
        """The text that says what the page is, with its mark; None where somebody has taken it away."""

    def parts(self) -> list[PagePart]: ...

    def with_parts(self, parts: Sequence[PagePart], about: str) -> Self:
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


def digests(parts: Sequence[PagePart]) -> dict[str, str]:
    """Digests of our parts by key."""
    return {part.key: digest(part.own) for part in parts if part.key is not None}


def merge(
    there: Sequence[PagePart], wanted: Sequence[PagePart], saved: Mapping[str, str]
) -> tuple[list[PagePart], dict[str, str]]:
    """The parts of a page, and the digests to be saved with them.

    A part is brought up to date, or dropped where it is no longer wanted, if it still is as it was `saved`. One that
    was saved and is not there any more has been deleted, and stays so. What was never saved is new.
    """
    ours = {part.key: part for part in wanted if part.key is not None}
    current = digests(wanted)
    parts: list[PagePart] = []
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


def _end_of(where: str, parts: Sequence[PagePart]) -> int:
    """The place after the last part under a heading; the end, where there is none."""
    return max((place for place, part in enumerate(parts, start=1) if part.where == where), default=len(parts))
