"""Saving and restoring of a trainer's state for checkpoints, random number generators included."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ampsweep.data.base import Stateful
from ampsweep.training.checkpoint import Checkpoint, save_checkpoint
from ampsweep.training.checkpoint_faults import names_of
from ampsweep.training.trainer import Trainer


def take_checkpoint(trainer: Trainer, directory: Path, config_hash: str, model_name: str, arm: str) -> Path:
    """Write the trainer's whole state to `directory`; waits for the device."""
    return save_checkpoint(
        Checkpoint(
            step=trainer.step,
            next_batch=trainer.next_batch,
            applied_steps=int(trainer.instruments.applied_steps()),
            config_hash=config_hash,
            model_name=model_name,
            arm=arm,
            model=trainer.model.state_dict(),
            optimizers={
                name: {"class": type(one).__name__, "state": one.state_dict(), "parameters": _names(one, trainer.model)}
                for name, one in trainer.optimizers.items()
            },
            scaler=trainer.precision.state_dict(),
            scale_monitor=trainer.instruments.state_dict(),
            rng=rng_state(trainer.precision.device),
            data=trainer.data.state_dict() if isinstance(trainer.data, Stateful) else {},
        ),
        directory,
    )


def resume(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    """Restore the trainer's state from the checkpoint; return sentences for the user about what did not carry over."""
    notes: list[str] = []
    trainer.model.load_state_dict(checkpoint.model)
    notes += _load_optimizers(trainer, checkpoint.optimizers)
    note = trainer.precision.load_state_dict(checkpoint.scaler)
    notes += [] if note is None else [note]
    trainer.instruments.load_state_dict(checkpoint.scale_monitor, applied_steps=checkpoint.applied_steps)
    restore_rng_state(checkpoint.rng, trainer.precision.device)
    trainer.step, trainer.next_batch = checkpoint.step, checkpoint.next_batch
    if isinstance(trainer.data, Stateful) and checkpoint.data:
        notes += trainer.data.load_state_dict(checkpoint.data) or []
    if trainer.step >= trainer.num_steps:
        notes.append(f"the checkpoint is of step {trainer.step} of {trainer.num_steps}: nothing is left to train")
    return notes


def _load_optimizers(trainer: Trainer, saved: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Load the optimizers' states; yield a sentence about each that starts fresh."""
    trained = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    for name, optimizer in trainer.optimizers.items():
        kind = type(optimizer).__name__
        if name not in saved:
            yield f"the checkpoint has no optimizer with the name {name}; {kind} starts fresh"
        elif saved[name]["class"] != kind:
            yield f"the checkpoint's {saved[name]['class']} state is ignored; {kind} starts fresh"
        else:
            names = names_of(saved[name], trained)
            _load_optimizer(optimizer, _names(optimizer, trainer.model), saved[name]["state"], names)


def _load_optimizer(optimizer: torch.optim.Optimizer, own: list[str], state: dict[str, Any], saved: list[str]) -> None:
    """Load the optimizer's state of each parameter, wherever it is grouped now.

    Hyperparameters stay this run's own, not the checkpoint's.

    Args:
        own, saved: names of the parameters, in the order of the optimizer and of `state`.
    """
    ids = [one for group in state["param_groups"] for one in group["params"]]
    of_parameter = {name: state["state"][one] for name, one in zip(saved, ids, strict=True) if one in state["state"]}
    groups = optimizer.state_dict()["param_groups"]
    numbers = [one for group in groups for one in group["params"]]
    states = {one: of_parameter[name] for one, name in zip(numbers, own, strict=True) if name in of_parameter}
    states |= {key: value for key, value in state["state"].items() if isinstance(key, str)}  # of the whole optimizer
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """The names of the optimizer's parameters, in its order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


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
