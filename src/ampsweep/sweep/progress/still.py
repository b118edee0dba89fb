"""A picture that is drawn again only when the terminal has another size."""

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment, SegmentLines


class Still:
    """Shows `renderable` as it was when it was first asked for in that size: a live display asks twice a second."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable
        self._size: tuple[int, int] | None = None
        self._lines: list[list[Segment]] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich asks for it."""
        size = options.max_width, options.max_height
        if size != self._size:
            self._lines = console.render_lines(self._renderable, options.update(height=None), pad=False)
            self._size = size
        yield SegmentLines(self._lines, new_lines=True)
