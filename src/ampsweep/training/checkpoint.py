"""Checkpoints: everything a run needs to go on exactly where it was, written so that a crash loses nothing."""

import pickle
import struct
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.record import CHECKPOINTS, LAST, PREVIOUS, remove_leftovers, replacing
from ampsweep.training.checkpoint_faults import fault_for, fault_of

FORMAT: Final = 2
_OF_ONE_OPTIMIZER: Final = 1
"""The format of checkpoints in which there is one optimizer."""
_DAMAGED_NAME: Final = "last.pt.damaged"

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
    """By name the `class` (its name), `state` and `parameters` (their names, in the state's order) of each optimizer.

    In a checkpoint of before there were several the `parameters` are None: they are all of the model's.
    """
    scaler: dict[str, Any]
    scale_monitor: dict[str, Any]
    rng: dict[str, Any]
    data: dict[str, Any]
    """State of the data; empty for data without any."""
    format: int = FORMAT


def save_checkpoint(checkpoint: Checkpoint, run_directory: Path, *, file_name: str = LAST) -> Path:
    """Write a file of `checkpoints/` by way of a synced temporary one; the `last.pt` before becomes `previous.pt`."""
    directory = run_directory / CHECKPOINTS
    directory.mkdir(exist_ok=True)
    file = directory / file_name
    remove_leftovers(file)
    with replacing(file, keep_as=directory / PREVIOUS if file_name == LAST else None) as stream:
        torch.save({f.name: getattr(checkpoint, f.name) for f in fields(checkpoint)}, stream)
    return file


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, and its file."""

    checkpoint: Checkpoint
    path: Path
    note: str | None = None
    """A sentence if a newer one was passed over."""


def find_checkpoint(path: Path) -> FoundCheckpoint:
    """Read the checkpoint that `path` stands for: the file itself, or the newest one of a run directory that is whole.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return FoundCheckpoint(load_checkpoint(path), path)
    files = [file for name in (LAST, PREVIOUS) if (file := path / CHECKPOINTS / name).is_file()]
    if not files:
        raise CheckpointError(f"{path} is neither a checkpoint nor a run directory with one")
    faults = []
    for file in files:
        try:
            checkpoint = load_checkpoint(file)
        except CheckpointError as error:
            faults.append(str(error))
            continue
        note = f"{faults[0]}; going on from {file.name}, of step {checkpoint.step}" if faults else None
        return FoundCheckpoint(checkpoint, file, note)
    raise CheckpointError(" and ".join(faults))


def set_aside(run_directory: Path) -> None:
    """Rename the damaged `last.pt` of a run, so that the next one does not make it the one before, which is whole."""
    last = run_directory / CHECKPOINTS / LAST
    last.replace(last.with_name(_DAMAGED_NAME))


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
        raise CheckpointError(f"checkpoint {path} cannot be read: it is damaged or no checkpoint") from error
    if isinstance(content, dict) and content.get("format") == _OF_ONE_OPTIMIZER:
        content = _with_several(content)
    names = {f.name for f in fields(Checkpoint)}
    if not isinstance(content, dict) or content.keys() != names or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {FORMAT})")
    if (fault := fault_of(content)) is not None:
        raise CheckpointError(f"checkpoint {path} is of no training: {fault}")
    return Checkpoint(**content)


def _with_several(content: dict[Any, Any]) -> dict[Any, Any]:
    """Write the content of an older checkpoint as it is written now."""
    kept = {key: value for key, value in content.items() if key not in ("optimizer_class", "optimizer")}
    optimizer = {"class": content.get("optimizer_class"), "state": content.get("optimizer"), "parameters": None}
    return kept | {"optimizers": {"optimizer": optimizer}, "data": {}, "format": FORMAT}


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
