"""The console that the suite prints on, safe for names and paths with any characters."""

import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_TURNING: Final = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Bidirectional classes of characters that reverse the text beside them."""


class Terminal(Console):
    """A console on which `[red]` is no style, and characters that would steer the terminal are shown as a mark.

    Names come from configs, and in a report of other people's runs from a server.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_harmless(segment.text), segment.style)


def _harmless(text: str) -> str:
    """`text` with a mark for every character that would steer a terminal; new lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("�" if _steers(character) else character for character in text)


def _steers(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in _TURNING
