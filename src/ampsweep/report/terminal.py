"""The console of the suite, safe for names and paths with any characters."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ampsweep.text import escaped


class Terminal(Console):
    """A console without markup (`[red]`) that escapes control characters.

    Names come from configs and, in a report of other people's runs, from a server.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text, keeps="\n\t"), segment.style)
