"""Standard streams that survive being closed or losing their reader (`| head -1`), and their copy in a run's log."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

_TAIL_BYTES: Final = 65_536
OUTPUT_NAME: Final = "output.log"  # the printed output of a run's process; W&B shows a file of this name as its log


class _DroppedIfUnread(io.FileIO):
    """A stream that writes to /dev/null once its reader is gone."""

    def write(self, content: Any, /) -> Any:
        try:
            return super().write(content)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(content)


def guard_streams() -> None:
    """Make stdout and stderr survive closing and lost readers; replaced streams stay as they are."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next opened file would get this number, and the printed output
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        if before is getattr(sys, f"__{name}__") and isinstance(before, io.TextIOWrapper | None):
            raw = io.BufferedWriter(_DroppedIfUnread(number, "w", closefd=False))
            text: dict[str, Any] = {} if before is None else {"encoding": before.encoding, "errors": before.errors}
            setattr(sys, name, io.TextIOWrapper(raw, line_buffering=number == 2 or os.isatty(number), **text))


class _Copied:
    def __init__(self, stream: Any, file: io.FileIO) -> None:
        self._stream, self._file = stream, file

    def write(self, text: str) -> Any:
        with suppress(OSError):  # no room: still print it
            self._file.write(text.encode(errors="backslashreplace"))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def copied_output(path: Path) -> Iterator[None]:
    """Copy what Python code prints inside to a file, too."""
    before = sys.stdout, sys.stderr
    with path.open("ab", buffering=0) as file:
        sys.stdout, sys.stderr = _Copied(sys.stdout, file), _Copied(sys.stderr, file)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def tail(file: Path) -> str:
    """The end of what a process has printed to a file; empty if that cannot be read."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(file.stat().st_size - _TAIL_BYTES, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
