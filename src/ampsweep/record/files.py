"""Reading and writing of a run's files: an unreadable file raises its reason, and a write is atomic."""

import os
import tempfile
from pathlib import Path


class RecordError(ValueError):
    """A file that no run could have left there; `reason` is a clause that follows the path, such as `is empty`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def read_file(path: Path) -> bytes:
    """Read a file of a run.

    Raises:
        RecordError: the path is no file, or may not be read.
        FileNotFoundError: there is no such file.
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
    """Replace the content of `path` by `text` in one step, durable against a crash of the machine.

    Characters that UTF-8 cannot hold (half of a surrogate pair, a byte of a file name) are written as escapes.
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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a write names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
