"""A trainer's state, the generators of random numbers included: taken for a checkpoint, and restored from one."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampsweep.training.checkpoint import Checkpoint, save_checkpoint
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
            optimizer_class=type(trainer.optimizer).__name__,
            optimizer=trainer.optimizer.state_dict(),
            scaler=trainer.precision.state_dict(),
            scale_monitor=trainer.instruments.state_dict(),
            rng=rng_state(trainer.precision.device),
        ),
        directory,
    )


def resume(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    """Put the trainer where the checkpoint was taken; returns sentences for the user about what did not carry over."""
    notes = []
    trainer.model.load_state_dict(checkpoint.model)
    own = type(trainer.optimizer).__name__
    if checkpoint.optimizer_class == own:
        _load_optimizer(trainer.optimizer, checkpoint.optimizer)
    else:
        notes.append(f"the checkpoint's {checkpoint.optimizer_class} state is ignored; {own} starts fresh")
    note = trainer.precision.load_state_dict(checkpoint.scaler)
    notes += [] if note is None else [note]
    trainer.instruments.load_state_dict(checkpoint.scale_monitor, applied_steps=checkpoint.applied_steps)
    restore_rng_state(checkpoint.rng, trainer.precision.device)
    trainer.step, trainer.next_batch = checkpoint.step, checkpoint.next_batch
    if trainer.step >= trainer.num_steps:
        notes.append(f"the checkpoint is of step {trainer.step} of {trainer.num_steps}: nothing is left to train")
    return notes


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the per-parameter state; hyperparameters are this run's own, not the checkpoint's."""
    for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True):
        saved.update({key: value for key, value in own.items() if key != "params"})
    optimizer.load_state_dict(state)


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
