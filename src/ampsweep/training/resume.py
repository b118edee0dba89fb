"""Saving and restoring of a trainer's state for checkpoints, random number generators included."""

from pathlib import Path
from typing import Any

import torch

from ampsweep.record import LAST
from ampsweep.training.checkpoint import Checkpoint, save_checkpoint
from ampsweep.training.random_state import restore_rng_state, rng_state
from ampsweep.training.trainer import Trainer


def take_checkpoint(
    trainer: Trainer, directory: Path, config_hash: str, model_name: str, arm: str, *, file_name: str = LAST
) -> Path:
    """Write the trainer's whole state to a run's `directory`; waits for the device."""
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
        file_name=file_name,
    )


def resume(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    """Restore the trainer's state from the checkpoint; return sentences for the user about what did not carry over."""
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
    """Load the optimizer's per-parameter state; hyperparameters stay this run's own, not the checkpoint's."""
    for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True):
        saved.update({key: value for key, value in own.items() if key != "params"})
    optimizer.load_state_dict(state)
