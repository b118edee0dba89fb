"""A file of a run that cannot be read."""

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
