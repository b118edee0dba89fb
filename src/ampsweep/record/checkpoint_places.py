"""Places of a run's checkpoints: files of a process that trains alone, directories of several ranks."""

from pathlib import Path
from typing import Final

CHECKPOINTS: Final = "checkpoints"
LAST: Final = "last.pt"
PREVIOUS: Final = "previous.pt"
AT_SEAM: Final = "seam.pt"
MANIFEST: Final = "manifest.json"
"""The file that is in a directory once it is a whole checkpoint."""


def directory_of(file: Path) -> Path:
    """The directory that several ranks write where a process alone writes this file: `last` for `last.pt`."""
    return file.with_suffix("")


def is_checkpoint(path: Path) -> bool:
    """Tell whether `path` can be a checkpoint: a file, or a directory with a manifest."""
    return path.is_file() or (path / MANIFEST).is_file()


def kept_checkpoint(run_directory: Path, name: str) -> Path | None:
    """Find what a run has left under a name, such as `last.pt`: the file or its directory, whole or not."""
    file = run_directory / CHECKPOINTS / name
    if file.is_file():
        return file
    directory = directory_of(file)
    return directory if directory.is_dir() else None


def kept_checkpoints(run_directory: Path) -> list[Path]:
    """Find the checkpoints that a run can go on from, the newest first, whole or not."""
    found = (kept_checkpoint(run_directory, name) for name in (LAST, PREVIOUS))
    return [path for path in found if path is not None]
