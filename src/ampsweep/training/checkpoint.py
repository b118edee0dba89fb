"""Checkpoints: everything a run needs to go on exactly where it was, written so that a crash loses nothing."""

import os
import pickle
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.record import CHECKPOINTS, LAST, PREVIOUS

FORMAT: Final = 1

_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
)
"""What reading a file that is damaged or something else can raise."""


class CheckpointError(ValueError):
    """A file that is no usable checkpoint."""


@dataclass(kw_only=True)
class Checkpoint:
    """State after `step` steps. Plain containers and tensors only, so that it loads with `weights_only=True`."""

    step: int
    next_batch: int
    """Index of the micro-batch that comes next."""
    applied_steps: int
    config_hash: str
    model_name: str
    arm: str
    model: dict[str, Any]
    optimizer_class: str
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    scale_monitor: dict[str, Any]
    rng: dict[str, Any]
    format: int = FORMAT


def save_checkpoint(checkpoint: Checkpoint, run_directory: Path) -> Path:
    """Write `checkpoints/last.pt` by way of a synced temporary file; the one before becomes `previous.pt`."""
    directory = run_directory / CHECKPOINTS
    directory.mkdir(exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=f".{LAST}.")
    temporary, last = Path(name), directory / LAST
    try:
        with os.fdopen(handle, "wb") as stream:
            torch.save({f.name: getattr(checkpoint, f.name) for f in fields(checkpoint)}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        if last.exists():
            last.replace(directory / PREVIOUS)
        temporary.replace(last)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return last


def find_checkpoint(path: Path) -> Path:
    """The checkpoint file that `path` means: the file itself, or the newest one of a run directory.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return path
    for name in (LAST, PREVIOUS):
        if (path / CHECKPOINTS / name).is_file():
            return path / CHECKPOINTS / name
    raise CheckpointError(f"{path} is neither a checkpoint nor a run directory with one")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, without running any code in it.

    Raises:
        CheckpointError: the file is missing, damaged, or something else.
    """
    try:
        _verify(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} does not exist") from error
    except _DAMAGED as error:
        before = path.with_name(PREVIOUS)
        hint = f"; {before} is the one before, taken once this one is deleted" if _is_last(path, before) else ""
        raise CheckpointError(f"checkpoint {path} cannot be read: it is damaged or no checkpoint{hint}") from error
    names = {f.name for f in fields(Checkpoint)}
    if not isinstance(content, dict) or content.keys() != names or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {FORMAT})")
    return Checkpoint(**content)


def _is_last(path: Path, before: Path) -> bool:
    return path.name == LAST and before.is_file()


def _verify(path: Path) -> None:
    """Compare the archive's checksums, which `torch.save` writes and `torch.load` does not look at."""
    with zipfile.ZipFile(path) as archive:
        if (part := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{part} does not match its checksum")


def require_same_model(checkpoint: Checkpoint, path: Path, model: torch.nn.Module, model_name: str) -> None:
    """Refuse a checkpoint whose parameters are not those of `model` (which may be on the meta device).

    Raises:
        CheckpointError: naming both models and the first difference.
    """
    saved = {name: tuple(value.shape) for name, value in checkpoint.model.items() if isinstance(value, torch.Tensor)}
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise CheckpointError(
                f"checkpoint {path} is of another model ({checkpoint.model_name}): {name} has shape "
                f"{saved.get(name, 'absent')} there and {own.get(name, 'absent')} in {model_name}"
            )
