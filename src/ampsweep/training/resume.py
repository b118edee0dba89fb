"""Saving and restoring of a trainer's state for checkpoints, random number generators included."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.numeric_formats import dtype_name
from ampsweep.parallel.base import SINGLE
from ampsweep.precision.float32_update import MASTER_WEIGHT, class_of
from ampsweep.training.checkpoint import Checkpoint, by_parameter, restore_rng_state, rng_state, save_checkpoint
from ampsweep.training.components.instantiate import parameters_of
from ampsweep.training.components.optimizer import class_name
from ampsweep.training.found_checkpoint import FoundCheckpoint
from ampsweep.training.trainer import Trainer


def take_checkpoint(trainer: Trainer, directory: Path, config_hash: str, model_name: str, arm: str) -> Path:
    """Write the trainer's whole state to a run's `directory`; waits for the device. Each rank calls it.

    Args:
        config_hash: equal for all trainings whose steps take the same memory.

    Raises:
        OSError: it could not be written; on all ranks alike.
    """
    checkpoint = checkpoint_now(trainer, config_hash, model_name, arm)
    if trainer.parallel is SINGLE:
        return save_checkpoint(checkpoint, directory)
    from ampsweep.training.sharded_checkpoint import save_together  # a single process does without torch.distributed

    buffers = {name for name, _ in trainer.model.named_buffers()}
    return save_together(checkpoint, directory, trainer.parallel, buffers=buffers)


def checkpoint_now(trainer: Trainer, config_hash: str = "", model_name: str = "", arm: str = "") -> Checkpoint:
    """The trainer's whole state, whose tensors are the training's own; waits for the device."""
    return Checkpoint(
        step=trainer.step,
        next_batch=trainer.next_batch,
        batch_size=trainer.data.batch_size,
        applied_steps=int(trainer.instruments.applied_steps()),
        config_hash=config_hash,
        model_name=model_name,
        arm=arm,
        model=trainer.model.state_dict(),
        optimizers={name: _saved(one, trainer.model) for name, one in trainer.optimizers.items()},
        scaler=trainer.precision.state_dict(),
        scale_monitor=trainer.instruments.state_dict(),
        rng=rng_state(trainer.precision.device),
        observed=trainer.instruments.observed(),
    )


def _saved(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    return {
        "class": class_name(optimizer),
        "state": optimizer.state_dict(),
        "parameters": _names(optimizer, model),
    }


def resume(trainer: Trainer, found: FoundCheckpoint, config_hash: str | None = None) -> list[str]:
    """Restore the trainer's state from a checkpoint; return sentences for the user about what did not carry over.

    Each rank calls it.

    Args:
        config_hash: the same of this training. The memory of the steps before counts where the checkpoint has the same.

    Raises:
        CheckpointError: its place in the data is none of this training's.
    """
    device = trainer.precision.device
    checkpoint, notes = found.restored(trainer.model, trainer.data.batch_size, trainer.parallel, device)
    checkpoint = _with_master_weights(checkpoint)
    own = trainer.model.state_dict() | _master_weights(trainer)
    notes += _converted("parameters", checkpoint.model.values(), own.values())
    trainer.model.load_state_dict(checkpoint.model)
    notes += _load_optimizers(trainer, checkpoint.optimizers)
    for name, weight in _master_weights(trainer).items():  # also where the optimizer starts fresh
        weight.copy_(checkpoint.model[name])
    note = trainer.precision.load_state_dict(checkpoint.scaler)
    notes += [] if note is None else [note]
    trainer.instruments.load_state_dict(checkpoint.scale_monitor, applied_steps=checkpoint.applied_steps)
    is_same = config_hash == checkpoint.config_hash and found.world_size == trainer.parallel.world_size
    trainer.instruments.go_on(checkpoint.observed, checkpoint.step, is_same_run=is_same)
    restore_rng_state(checkpoint.rng, device)
    trainer.step, trainer.next_batch = checkpoint.step, checkpoint.next_batch
    if trainer.step >= trainer.num_steps:
        notes.append(f"the checkpoint is of step {trainer.step} of {trainer.num_steps}: nothing is left to train")
    return notes


def _with_master_weights(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint with the master weights in it in place of the parameters that were rounded from them.

    A training that keeps master weights takes them from the parameters, any other has them for its parameters.
    """
    states = [state for one in checkpoint.optimizers.values() for state in by_parameter(one).items()]
    values = copy.copy(checkpoint.model)  # of its own class, with the versions of its modules
    values.update({name: state[MASTER_WEIGHT] for name, state in states if MASTER_WEIGHT in state})
    return replace(checkpoint, model=values)


def _master_weights(trainer: Trainer) -> dict[str, Tensor]:
    """The master weights of a training, by the names of their parameters."""
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    return {
        names[parameter]: state[MASTER_WEIGHT]  # type: ignore[index]  # keys of a state are parameters
        for optimizer in trainer.optimizers.values()
        for parameter, state in optimizer.state.items()
        if MASTER_WEIGHT in state
    }


def _load_optimizers(trainer: Trainer, saved: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Load the optimizers' states; yield a sentence about each that starts fresh."""
    for name, optimizer in trainer.optimizers.items():
        kind = class_name(optimizer)
        if name not in saved:
            yield f"the checkpoint has no optimizer with the name {name}; {kind} starts fresh"
        elif saved[name]["class"] != kind:
            yield f"the checkpoint's {saved[name]['class']} state is ignored; {kind} starts fresh"
        else:
            _load_optimizer(optimizer, _names(optimizer, trainer.model), saved[name])
            yield from _converted(f"{kind}'s state", _moments(saved[name]["state"]), _moments(optimizer.state_dict()))


def _moments(state: dict[str, Any]) -> list[Any]:
    """The tensors that an optimizer keeps for its parameters and casts to their dtype; not its counts of steps."""
    return [
        value
        for of in state["state"].values()
        if isinstance(of, dict)
        for key, value in of.items()
        if key not in ("step", MASTER_WEIGHT)
    ]


def _converted(what: str, saved: Iterable[Any], own: Iterable[Any]) -> list[str]:
    """Say so if floating-point tensors of a checkpoint are loaded into another dtype."""
    before, now = _dtypes_of(saved), _dtypes_of(own)
    if before == now or not before or not now:
        return []
    is_exact = all(torch.promote_types(one, other) == other for one in before for other in now)
    how = "exact, with no more digits than were saved" if is_exact else "rounded"
    return [f"the checkpoint's {what} in {_names_of(before)} became {_names_of(now)}: {how}"]


def _dtypes_of(values: Iterable[Any]) -> set[torch.dtype]:
    return {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}


def _names_of(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(dtype_name(one) for one in dtypes))


def _load_optimizer(optimizer: torch.optim.Optimizer, own: list[str], saved: Mapping[str, Any]) -> None:
    """Load the optimizer's state of each parameter, wherever it is grouped now.

    Hyperparameters, which are arguments of the class, stay this run's own, not the checkpoint's. Whatever else is in a
    group is state (a count of steps, an estimate that the class keeps there); it goes on if the parameters are grouped
    as they were, and by the same class.

    Args:
        own: names of the parameters, in the order of the optimizer.
    """
    state, of_parameter = saved["state"], by_parameter(saved)
    groups = optimizer.state_dict()["param_groups"]
    lengths, lengths_before = ([len(group["params"]) for group in one] for one in (groups, state["param_groups"]))
    if saved["class"] == class_name(optimizer) and lengths == lengths_before:
        arguments = parameters_of(class_of(optimizer))
        for group, before in zip(groups, state["param_groups"], strict=True):
            group |= {key: value for key, value in before.items() if key not in arguments and key != "params"}
    numbers = [one for group in groups for one in group["params"]]
    states: dict[Any, Any] = {}
    for number, name in zip(numbers, own, strict=True):
        if name in of_parameter:
            states[number] = {key: value for key, value in of_parameter[name].items() if key != MASTER_WEIGHT}
    states |= {key: value for key, value in state["state"].items() if isinstance(key, str)}  # of the whole optimizer
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
