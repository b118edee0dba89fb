"""The files of a run: an unreadable one raises its reason, a write is atomic, and checkpoints have their places."""

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ampsweep.own_code import chain_of

_NUM_RANDOM: Final = 8
"""Letters at the end of a temporary file's name."""

CHECKPOINTS: Final = "checkpoints"
LAST: Final = "last.pt"
PREVIOUS: Final = "previous.pt"
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that mean that the disk, the quota or the largest size of a file leaves no room."""


class RecordError(ValueError):
    """A file that no run could have left there; `reason` is a clause that follows the path, such as `is empty`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def read_file(path: Path) -> bytes:
    """Read a file of a run; raises RecordError if the path is no file, or may not be read."""
    try:
        # Asked first: to open a pipe would wait for somebody to write into it.
        if not path.is_file() and (path.exists() or path.is_symlink()):
            raise RecordError(path, "is a directory" if path.is_dir() else "is not a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}") from error


@contextmanager
def replacing(path: Path, *, keep_as: Path | None = None) -> Iterator[BinaryIO]:
    """Open a stream whose content takes the place of `path` in one step at the end, durable against a crash.

    An error leaves the file as it was. `keep_as` is the name that a file before keeps.
    """
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if (of_system := system_error(error)) is not None:  # a write names no file
            raise OSError(of_system.errno, of_system.strerror, str(path)) from error
        raise


def system_error(error: BaseException) -> OSError | None:
    """Find the system's error behind another one, such as that of torch's writer."""
    return next((one for one in chain_of(error) if isinstance(one, OSError)), None)


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in one step, durable against a crash of the machine.

    Characters that UTF-8 cannot hold (half of a surrogate pair, a byte of a file name) are written as escapes.
    """
    with replacing(path) as stream:
        stream.write(text.encode("utf-8", errors="backslashreplace"))


def remove_leftovers(*paths: Path) -> None:
    """Remove what killed writers of these files left beside them; only for the one writer of these files."""
    for path in paths:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'?' * _NUM_RANDOM}"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """A name beside `path` for what is to take its place, known to `remove_leftovers`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_NUM_RANDOM // 2)}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable against a crash of the machine, where the system can."""
    if os.name == "nt":  # which cannot open one
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def directory_of(file: Path) -> Path:
    """The directory that several ranks write where a process alone writes this file: `last` for `last.pt`."""
    return file.with_suffix("")


def rank_file(rank: int) -> str:
    """The name of a rank's file in such a directory."""
    return f"rank-{rank}.pt"


def is_checkpoint(path: Path) -> bool:
    """Tell whether `path` can be a checkpoint: a file, or a directory with that of rank 0."""
    return path.is_file() or (path / rank_file(0)).is_file()


def kept_checkpoint(run_directory: Path, name: str) -> Path | None:
    """Find what a run has left under a name, such as `last.pt`: the file or its directory, whole or not."""
    file = run_directory / CHECKPOINTS / name
    return file if file.is_file() else directory_of(file) if directory_of(file).is_dir() else None


def kept_checkpoints(run_directory: Path) -> list[Path]:
    """Find the checkpoints that a run can go on from, the newest first, whole or not."""
    found = (kept_checkpoint(run_directory, name) for name in (LAST, PREVIOUS))
    return [path for path in found if path is not None]
