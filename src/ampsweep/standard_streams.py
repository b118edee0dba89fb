"""Standard streams that are closed, or whose reader goes away as `| head -1` does: what is printed there is lost."""

import io
import os
import sys
from typing import Any


class _LostUnread(io.FileIO):
    """A stream that goes on into nothing where nobody reads it any more."""

    def write(self, content: Any, /) -> Any:
        try:
            return super().write(content)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(content)


def guard_streams() -> None:
    """Keep this process going whatever becomes of its stdout and stderr; streams that a caller has put there stay."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # a file opened later would get the number, and with it what is printed
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        if before is getattr(sys, f"__{name}__") and isinstance(before, io.TextIOWrapper | None):
            raw = io.BufferedWriter(_LostUnread(number, "w", closefd=False))
            told: dict[str, Any] = {} if before is None else {"encoding": before.encoding, "errors": before.errors}
            setattr(sys, name, io.TextIOWrapper(raw, line_buffering=number == 2 or os.isatty(number), **told))
