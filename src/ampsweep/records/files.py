"""The files of a run: reading with clear errors, atomic writes, digests, and the places of checkpoints."""

import errno
import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

from ampsweep.user_code import chain_of

_NUM_RANDOM: Final = 8  # random characters at the end of a temporary file's name

MULTIRUN_NAME: Final = "multirun.yaml"  # the file that Hydra writes into the directory of a multirun
CHECKPOINTS: Final = "checkpoints"
LAST: Final = "last.pt"
PREVIOUS: Final = "previous.pt"
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # full disk, quota or file size limit

_NUM_BYTES: Final = 16
DIGEST: Final = "digest"  # last key of a record
_SEAL: Final = re.compile(rb'"[^"]*": "([0-9a-f]{32})"\n}\n\Z')
"""The end of a sealed record; any key, since the digest covers the key, too."""
_SEAL_LENGTH: Final = len(f'"{DIGEST}": "{"0" * 2 * _NUM_BYTES}"\n}}\n')
CHANGED: Final = "has been changed since it was written: it does not match its digest"


class RecordError(ValueError):
    """A file that no run could have left; `reason` is a clause that follows the path, such as `is empty`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def read_file(path: Path) -> bytes:
    """Read a file of a run; raises RecordError if the path is no file or cannot be read."""
    try:
        # Checked first: opening a pipe would wait for a writer.
        if not path.is_file() and (path.exists() or path.is_symlink()):
            raise RecordError(path, "is a directory" if path.is_dir() else "is not a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}") from error


@contextmanager
def replacing(path: Path, *, keep_as: Path | None = None) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces `path` atomically, durable against a crash; `keep_as` keeps the old file."""
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
    """Find the system's error behind another error, such as one of torch's writer."""
    return next((cause for cause in chain_of(error) if isinstance(cause, OSError)), None)


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of `path` atomically, durable against a crash; what UTF-8 cannot hold is escaped."""
    with replacing(path) as stream:
        stream.write(text.encode("utf-8", errors="backslashreplace"))


def digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=_NUM_BYTES).hexdigest()


def sealed(text: str) -> str:
    """Append the digest of everything before it as the last key of a JSON object indented by one space."""
    assert text.endswith("\n}\n")
    whole = f'{text.removesuffix(chr(10) + "}" + chr(10))},\n "{DIGEST}": "'
    return f'{whole}{digest_of(whole.encode())}"\n}}\n'


def is_as_sealed(content: bytes, parsed: dict[str, Any]) -> bool:
    """Return True if a record's file, which holds `parsed`, matches its digest or has none."""
    seal = _SEAL.search(content[-2 * _SEAL_LENGTH :])
    if seal is None:
        return DIGEST not in parsed
    digest = seal[1]
    length = len(content) - len(digest) - len('"\n}\n')
    return digest_of(content[:length]).encode() == digest


def remove_leftovers(*paths: Path) -> None:
    """Remove temporary files of killed writers; only for the sole writer of these files."""
    for path in paths:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'?' * _NUM_RANDOM}"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def temporary_beside(path: Path) -> Path:
    """A temporary name beside `path` that `remove_leftovers` recognizes."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_NUM_RANDOM // 2)}")


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable against a crash of the machine, where the system can."""
    if os.name == "nt":  # Windows cannot open a directory
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def directory_of(file: Path) -> Path:
    """The directory that several ranks write instead of `file`: `last` for `last.pt`."""
    return file.with_suffix("")


def rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def is_checkpoint(path: Path) -> bool:
    """Return True if `path` may be a checkpoint: a file, or a directory with the file of rank 0."""
    return path.is_file() or (path / rank_file(0)).is_file()


def kept_checkpoint(run_directory: Path, name: str) -> Path | None:
    """Find the checkpoint of this name, such as `last.pt`: a file or directory, complete or not."""
    file = run_directory / CHECKPOINTS / name
    return file if file.is_file() else directory_of(file) if directory_of(file).is_dir() else None


def kept_checkpoints(run_directory: Path) -> list[Path]:
    """Find the checkpoints that a run can continue from, newest first, complete or not."""
    found = (kept_checkpoint(run_directory, name) for name in (LAST, PREVIOUS))
    return [path for path in found if path is not None]
