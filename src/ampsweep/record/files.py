"""Files of a run, read with a reason where they cannot be, and written so that their readers see them whole."""

import os
import tempfile
from pathlib import Path


class RecordError(ValueError):
    """A file that is not what a run leaves there; `reason` is a clause that follows its path: `is empty`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def read_file(path: Path) -> bytes:
    """The content of a file of a run.

    Raises:
        RecordError: it is no file, or may not be read.
        FileNotFoundError: there is none.
    """
    try:
        # Asked first: to open a pipe would wait for somebody to write into it.
        if not path.is_file() and (path.exists() or path.is_symlink()):
            raise RecordError(path, "is a directory" if path.is_dir() else "is not a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}") from error


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step, durable against a crash of the machine.

    What no UTF-8 can hold (half of a surrogate pair, a byte of a file name) is written as its escape.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
