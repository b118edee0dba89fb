"""Standard streams that are closed, or whose reader goes away as `| head -1` does: what is printed there is lost.

And their copy in a file, where a run is to keep it.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

OUTPUT_NAME: Final = "output.log"
"""The file of a run with what its process has printed; W&B shows a file of this name as the run's log."""


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


class _Copied:
    """A stream whose text goes into a file as well."""

    def __init__(self, stream: Any, file: io.FileIO) -> None:
        self._stream, self._file = stream, file

    def write(self, text: str) -> Any:
        with suppress(OSError):  # no room: it is printed all the same
            self._file.write(text.encode(errors="backslashreplace"))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def copied_output(path: Path) -> Iterator[None]:
    """Append what Python code prints inside to a file as well, but for what moves a terminal's cursor."""
    before = sys.stdout, sys.stderr
    with path.open("ab", buffering=0) as file:
        sys.stdout, sys.stderr = _Copied(sys.stdout, file), _Copied(sys.stderr, file)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
