"""Checkpoints: the whole state of a training, written so that a crash loses nothing."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from ampsweep.data.fingerprint import tensor_digest
from ampsweep.data.generators import generator_states, restore_generators, seed_all
from ampsweep.data.seeding import seed_of
from ampsweep.nested_tensors import wraps_others
from ampsweep.precision.torchao_import import MissingTorchaoError, import_torchao
from ampsweep.records import CHECKPOINTS, LAST, PREVIOUS, is_checkpoint, kept_checkpoints, rank_file, replacing

FORMAT: Final = 5

_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, pickle.UnpicklingError),
    *(RuntimeError, EOFError, OSError, ValueError, LookupError),
)
"""Errors raised when reading a damaged or foreign file."""


class CheckpointError(ValueError):
    """Raised for a file that is not a usable checkpoint."""


@dataclass(kw_only=True)
class Checkpoint:
    """The state after `step` steps, in plain containers and tensors, so that it loads with `weights_only=True`."""

    step: int
    next_batch: int  # index of the next micro-batch
    batch_size: int  # samples per micro-batch and rank
    applied_steps: int
    config_hash: str
    model_name: str
    arm: str
    model: dict[str, Any]
    optimizers: dict[str, dict[str, Any]]  # by name; each with its class, state and parameters (names, in its order)
    scaler: dict[str, Any]
    scale_monitor: dict[str, Any]
    rng: dict[str, Any]
    observed: dict[str, Any]  # the state of the instruments
    evaluations: list[tuple[dict[str, float], int]] = field(default_factory=list)  # all so far, with their steps
    world_size: int = 1
    sharded: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    """By tensor name (see `map_tensors`), the sharded dimension and its full size; None for a replicated DTensor."""
    format: int = FORMAT


def save_checkpoint(checkpoint: Checkpoint, run_directory: Path) -> Path:
    """Write `checkpoints/last.pt` atomically; the checkpoint before becomes `previous.pt`."""
    directory = run_directory / CHECKPOINTS
    directory.mkdir(exist_ok=True)
    file = directory / LAST
    with replacing(file, keep_as=directory / PREVIOUS) as stream:
        torch.save(vars(checkpoint), stream)
    return file


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, without running any code in it; raise a CheckpointError for other files."""
    return checkpoint_of(read_content(path), path)


def arm_and_step(path: Path) -> tuple[str, int]:
    """Read the arm and the step of a checkpoint, or of the newest in a run directory, without loading tensors."""
    place = path if is_checkpoint(path) else next(iter(kept_checkpoints(path)), path)
    checkpoint = checkpoint_of(read_content(place / rank_file(0) if place.is_dir() else place, in_place=True), place)
    return checkpoint.arm, checkpoint.step


def read_content(path: Path, *, in_place: bool = False) -> Any:
    """Load a file saved by torch as `load_checkpoint` does; `in_place` maps its tensors, unverified."""
    if not in_place:
        verify(path)
    with _refusing_damaged(path):
        if any(name.startswith("torchao.") for name in get_unsafe_globals_in_checkpoint(path)):
            import_torchao("torchao.optim", f"checkpoint {path}")  # registers its tensors as safe globals
        return torch.load(path, map_location="cpu", weights_only=True, mmap=in_place)


def verify(path: Path) -> None:
    """Verify the archive's checksums, which `torch.load` ignores; raise a CheckpointError if they do not match."""
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
    """Convert the content of `path` to a checkpoint; raise a CheckpointError if it is something else."""
    known = {field.name for field in fields(Checkpoint)}
    if not isinstance(content, dict) or content.keys() != known or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {FORMAT})")
    return Checkpoint(**content)


def require_same_model(checkpoint: Checkpoint, path: Path, model: torch.nn.Module, model_name: str) -> None:
    """Raise a CheckpointError unless parameters and optimizers fit `model` (which may be on the meta device)."""
    saved = {name: tuple(value.shape) for name, value in checkpoint.model.items() if isinstance(value, Tensor)}
    for name, shape in saved.items():
        if (place := checkpoint.sharded.get(f"model.{name}")) is not None:
            saved[name] = (*shape[: place[0]], place[1], *shape[place[0] + 1 :])
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise CheckpointError(
                f"checkpoint {path} is of another model ({checkpoint.model_name}): {name} has shape "
                f"{saved.get(name, 'absent')} there and {own.get(name, 'absent')} in {model_name}"
            )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    known = [name for optimizer in checkpoint.optimizers.values() for name in optimizer["parameters"]]
    fault = next((f"the parameter {name}, which the model does not train" for name in known if name not in trained), "")
    if len(known) != len(trained):
        fault = f"{len(known)} parameters, the model {len(trained)} to train"
    if fault:
        raise CheckpointError(f"checkpoint {path} does not fit {model_name}: its optimizer has {fault}")


def parameter_ids(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """List the parameters (or their indices) of all groups in order."""
    return [number for group in groups for number in group["params"]]


def state_by_parameter(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of each parameter by name; `optimizer` is an entry of `Checkpoint.optimizers`."""
    ids, states = parameter_ids(optimizer["state"]["param_groups"]), optimizer["state"]["state"]
    return {name: states[number] for name, number in zip(optimizer["parameters"], ids, strict=True) if number in states}


def map_tensors(checkpoint: Checkpoint, function: Callable[[str, str, Tensor], Tensor]) -> Checkpoint:
    """Return the checkpoint with each tensor replaced by `function(name, owner, tensor)`.

    Names are like `model.0.weight` and `optimizers.optimizer.0.weight.exp_avg`; the owner of both is `0.weight`. Other
    optimizer state (in groups, for all parameters, or in tensors that wrap others) stays as it is.
    """
    model = copy(checkpoint.model)  # of its own class, with the versions of its modules
    for key, value in checkpoint.model.items():
        model[key] = _map_value(value, f"model.{key}", key, function)
    optimizers = {}
    for name, optimizer in checkpoint.optimizers.items():
        state = optimizer["state"]
        states = dict(state["state"])
        for number, parameter in zip(parameter_ids(state["param_groups"]), optimizer["parameters"], strict=True):
            if number in states:
                states[number] = _map_value(states[number], f"optimizers.{name}.{parameter}", parameter, function)
        optimizers[name] = optimizer | {"state": state | {"state": states}}
    return replace(checkpoint, model=model, optimizers=optimizers)


def _map_value(value: Any, name: str, owner: str, function: Callable[..., Tensor]) -> Any:
    if isinstance(value, Tensor):
        is_dtensor = hasattr(value, "placements")
        return value if wraps_others(value) and not is_dtensor else function(name, owner, value)
    if isinstance(value, dict):
        return {key: _map_value(item, f"{name}.{key}", owner, function) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_value(item, f"{name}.{number}", owner, function) for number, item in enumerate(value))
    return value


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy (which takes 32 bits) and torch, those of its devices, too."""
    seed_all(seed)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of Python's, NumPy's and torch's generators, as tensors and plain numbers."""
    state = generator_states()
    name, keys, *others = state["numpy"]
    state["numpy"] = [name, torch.from_numpy(keys.astype(np.int64)), *others]
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the generators from `rng_state`; a device without saved state keeps its seed."""
    name, keys, *others = state["numpy"]
    restore_generators(state | {"numpy": (name, keys.numpy().astype(np.uint32), *others)})
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def fresh_rng_state(state: dict[str, Any], rank: int, world_size: int, device: torch.device) -> dict[str, Any]:
    """Seed the generators of a rank from the `state` of a run with another number of ranks, deterministically."""
    seed_everything(seed_of(tensor_digest(state["torch"]), rank, world_size))
    return rng_state(device)
