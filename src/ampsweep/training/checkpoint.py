"""Checkpoints: everything a run needs to go on exactly where it was, written so that a crash loses nothing."""

import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from ampsweep.nested_tensors import wraps_others
from ampsweep.precision.torchao_import import MissingTorchaoError, import_torchao
from ampsweep.record import (
    CHECKPOINTS,
    LAST,
    PREVIOUS,
    is_checkpoint,
    kept_checkpoints,
    rank_file,
    replacing,
)

FORMAT: Final = 4

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
    """State after `step` steps. Plain containers and tensors, so that it loads with `weights_only=True`."""

    step: int
    next_batch: int
    """Index of the next micro-batch."""
    batch_size: int
    """Samples of a micro-batch of one rank."""
    applied_steps: int
    config_hash: str
    model_name: str
    arm: str
    model: dict[str, Any]
    optimizers: dict[str, dict[str, Any]]
    """By name the class name, the state and the parameters (their names, in the state's order) of each optimizer."""
    scaler: dict[str, Any]
    scale_monitor: dict[str, Any]
    rng: dict[str, Any]
    observed: dict[str, Any]
    """The state of the instruments after the steps so far."""
    world_size: int = 1
    sharded: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    """By the name that `with_tensors` has for a tensor of which each rank has a part, the dimension that is divided and
    its whole size; None: it was replicated by the same means (DTensor)."""
    format: int = FORMAT


def save_checkpoint(checkpoint: Checkpoint, run_directory: Path) -> Path:
    """Write `checkpoints/last.pt` by way of a synced temporary file; the one before becomes `previous.pt`."""
    directory = run_directory / CHECKPOINTS
    directory.mkdir(exist_ok=True)
    file = directory / LAST
    with replacing(file, keep_as=directory / PREVIOUS) as stream:
        torch.save({f.name: getattr(checkpoint, f.name) for f in fields(checkpoint)}, stream)
    return file


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, without running any code in it.

    Raises:
        CheckpointError: the file is missing, damaged, or something else.
    """
    return checkpoint_of(read_content(path), path)


def arm_and_step(path: Path) -> tuple[str, int]:
    """Read the arm and the step of a checkpoint, or of the newest one of a run's directory, without its tensors.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    place = path if is_checkpoint(path) else next(iter(kept_checkpoints(path)), path)
    checkpoint = checkpoint_of(read_content(place / rank_file(0) if place.is_dir() else place, in_place=True), place)
    return checkpoint.arm, checkpoint.step


def read_content(path: Path, *, in_place: bool = False) -> Any:
    """Read what torch has saved in a file, without running any code in it.

    Args:
        in_place: leave the tensors in the file, unverified, until somebody reads their values.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    if not in_place:
        verify(path)
    with _refusing_damaged(path):
        if any(name.startswith("torchao.") for name in get_unsafe_globals_in_checkpoint(path)):
            import_torchao("torchao.optim", f"checkpoint {path}")  # which tells torch that its tensors are safe
        return torch.load(path, map_location="cpu", weights_only=True, mmap=in_place)


def verify(path: Path) -> None:
    """Compare the archive's checksums, which `torch.save` writes and `torch.load` does not look at.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    with _refusing_damaged(path), zipfile.ZipFile(path) as archive:
        if (part := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"{part} does not match its checksum")


@contextmanager
def _refusing_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} does not exist") from error
    except MissingTorchaoError as error:
        raise CheckpointError(str(error)) from error
    except _DAMAGED as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: it is damaged or no checkpoint") from error


def checkpoint_of(content: Any, path: Path) -> Checkpoint:
    """Make a checkpoint of what was read from `path`.

    Raises:
        CheckpointError: it is something else.
    """
    known = {one.name for one in fields(Checkpoint)}
    if not isinstance(content, dict) or content.keys() != known or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {FORMAT})")
    return Checkpoint(**content)


def require_same_model(checkpoint: Checkpoint, path: Path, model: torch.nn.Module, model_name: str) -> None:
    """Refuse a checkpoint whose parameters, or their optimizer, are not of `model` (which may be on the meta device).

    Raises:
        CheckpointError: naming both models and the first difference.
    """
    saved = {name: whole_shape(checkpoint, name) for name, one in checkpoint.model.items() if isinstance(one, Tensor)}
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise CheckpointError(
                f"checkpoint {path} is of another model ({checkpoint.model_name}): {name} has shape "
                f"{saved.get(name, 'absent')} there and {own.get(name, 'absent')} in {model_name}"
            )
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    known = [name for optimizer in checkpoint.optimizers.values() for name in optimizer["parameters"]]
    fault = next((f"the parameter {name}, which the model does not train" for name in known if name not in trained), "")
    if len(known) != len(trained):
        fault = f"{len(known)} parameters, the model {len(trained)} to train"
    if fault:
        raise CheckpointError(f"checkpoint {path} does not fit {model_name}: its optimizer has {fault}")


def whole_shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    """The shape of a tensor of the model, of which the checkpoint may have a part."""
    shape = [*checkpoint.model[name].shape]
    if (place := checkpoint.sharded.get(f"model.{name}")) is not None:
        shape[place[0]] = place[1]
    return tuple(shape)


def by_parameter(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """The state that an optimizer keeps for each parameter, by its name; `optimizer` is one of `Checkpoint`'s."""
    ids = [one for group in optimizer["state"]["param_groups"] for one in group["params"]]
    states = optimizer["state"]["state"]
    return {name: states[one] for name, one in zip(optimizer["parameters"], ids, strict=True) if one in states}


Put = Callable[[str, str, Tensor], Tensor]


def with_tensors(checkpoint: Checkpoint, put: Put) -> Checkpoint:
    """Return the checkpoint with `put(name, owner, tensor)` in place of each tensor.

    Names are like `model.0.weight` and `optimizers.optimizer.0.weight.exp_avg`; the owner of both is `0.weight`. What
    an optimizer keeps otherwise, in its groups, for all parameters or in tensors that pack others, stays as it is.
    """
    model = copy(checkpoint.model)  # of its own class, with the versions of its modules
    for key, value in checkpoint.model.items():
        model[key] = _mapped(value, f"model.{key}", key, put)
    optimizers = {}
    for name, one in checkpoint.optimizers.items():
        ids = [number for group in one["state"]["param_groups"] for number in group["params"]]
        states = dict(one["state"]["state"])
        for number, parameter in zip(ids, one["parameters"], strict=True):
            if number in states:
                states[number] = _mapped(states[number], f"optimizers.{name}.{parameter}", parameter, put)
        optimizers[name] = one | {"state": one["state"] | {"state": states}}
    return replace(checkpoint, model=model, optimizers=optimizers)


def _mapped(value: Any, name: str, owner: str, put: Put) -> Any:
    if isinstance(value, Tensor):
        is_packed = wraps_others(value) and not hasattr(value, "placements")  # as a DTensor has, which wraps one too
        return value if is_packed else put(name, owner, value)
    if isinstance(value, dict):
        return {key: _mapped(one, f"{name}.{key}", owner, put) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(one, f"{name}.{number}", owner, put) for number, one in enumerate(value))
    return value


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy (which takes 32 bits) and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """State of Python's, NumPy's and torch's generators, as tensors and plain numbers."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue the generators where `rng_state` left them; a device that was not saved keeps its seed."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def fresh_rng_state(state: dict[str, Any], rank: int, world_size: int, device: torch.device) -> dict[str, Any]:
    """Derive the generators of a rank from a `state` that is of another number of ranks: a function of these three.

    The process's own are seeded by it.
    """
    origin = state["torch"].numpy().tobytes() + f"{rank} of {world_size}".encode()
    seed_everything(int.from_bytes(blake2b(origin, digest_size=4).digest()))
    return rng_state(device)
