"""Checkpoints: everything a run needs to go on exactly where it was, written so that a crash loses nothing."""

import pickle
import struct
import zipfile
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from ampsweep.record import CHECKPOINTS, LAST, PREVIOUS, remove_leftovers, replacing
from ampsweep.training.checkpoint_faults import fault_for, fault_of

FORMAT: Final = 2

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
"""Errors that reading a damaged or foreign file can raise."""


class CheckpointError(ValueError):
    """Raised for a file that is no usable checkpoint."""


@dataclass(kw_only=True)
class Checkpoint:
    """State after `step` steps. Plain containers and tensors only, so that it loads with `weights_only=True`."""

    step: int
    next_batch: int
    """Index of the next micro-batch."""
    applied_steps: int
    config_hash: str
    model_name: str
    arm: str
    model: dict[str, Any]
    optimizers: dict[str, dict[str, Any]]
    """By name each optimizer's `class` (its name), `state` and `parameters` (their names, in the state's order)."""
    scaler: dict[str, Any]
    scale_monitor: dict[str, Any]
    rng: dict[str, Any]
    data: dict[str, Any]
    """State of the data; empty for data without any."""
    observed: dict[str, Any] = field(default_factory=dict)
    """The state of the instruments after the steps so far."""
    format: int = FORMAT


class Storage(Protocol):
    """The form in which a training keeps its checkpoints; chosen once for a run."""

    def save(
        self, checkpoint: Checkpoint, run_directory: Path, *, model: torch.nn.Module, batch_size: int, file_name: str
    ) -> Path:
        """Write a checkpoint under a name of `checkpoints/`, such as `last.pt`; return its path.

        Args:
            model: the model, by whose names the state is.
            batch_size: samples of a micro-batch of this process.
        """


class OneFile:
    """The storage of a process that trains alone."""

    def save(
        self, checkpoint: Checkpoint, run_directory: Path, *, model: torch.nn.Module, batch_size: int, file_name: str
    ) -> Path:
        """Write the file."""
        return save_checkpoint(checkpoint, run_directory, file_name=file_name)


def save_checkpoint(checkpoint: Checkpoint, run_directory: Path, *, file_name: str = LAST) -> Path:
    """Write a file of `checkpoints/` by way of a synced temporary one; the `last.pt` before becomes `previous.pt`."""
    directory = run_directory / CHECKPOINTS
    directory.mkdir(exist_ok=True)
    file = directory / file_name
    remove_leftovers(file)
    with replacing(file, keep_as=directory / PREVIOUS if file_name == LAST else None) as stream:
        torch.save({f.name: getattr(checkpoint, f.name) for f in fields(checkpoint)}, stream)
    return file


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, without running any code in it.

    Raises:
        CheckpointError: the file is missing, damaged, or something else.
    """
    return checkpoint_of(read_content(path), path)


def read_content(path: Path) -> Any:
    """Read what torch has saved in a file, without running any code in it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        _verify(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} does not exist") from error
    except _DAMAGED as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: it is damaged or no checkpoint") from error


def checkpoint_of(content: Any, path: Path) -> Checkpoint:
    """Make a checkpoint of what was read from `path`.

    Raises:
        CheckpointError: it is something else.
    """
    names = {one.name for one in fields(Checkpoint)}
    if not isinstance(content, dict) or content.keys() != names or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {FORMAT})")
    if (fault := fault_of(content)) is not None:
        raise CheckpointError(f"checkpoint {path} is of no training: {fault}")
    return Checkpoint(**content)


def _verify(path: Path) -> None:
    """Compare the archive's checksums, which `torch.save` writes and `torch.load` does not look at."""
    with zipfile.ZipFile(path) as archive:
        if (part := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{part} does not match its checksum")


def require_same_model(checkpoint: Checkpoint, path: Path, model: torch.nn.Module, model_name: str) -> None:
    """Refuse a checkpoint whose parameters, or their optimizer, are not of `model` (which may be on the meta device).

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
    trained = {name: tuple(one.shape) for name, one in model.named_parameters() if one.requires_grad}
    if (fault := fault_for(checkpoint.optimizers, trained)) is not None:
        raise CheckpointError(f"checkpoint {path} does not fit {model_name}: {fault}")
