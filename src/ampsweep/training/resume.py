"""Saving and restoring of a trainer's state, random number generators included, and saving of its weights alone."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.numeric_formats import dtype_name
from ampsweep.parallel.base import SINGLE, together
from ampsweep.precision.float32_update import MASTER_WEIGHT, class_of
from ampsweep.records import CHECKPOINTS, replacing
from ampsweep.records.sections import KeptWeights
from ampsweep.training.checkpoint import (
    Checkpoint,
    parameter_ids,
    restore_rng_state,
    rng_state,
    save_checkpoint,
    state_by_parameter,
)
from ampsweep.training.components.instantiate import parameters_of
from ampsweep.training.components.optimizer import MAX_GRAD_NORM, class_name
from ampsweep.training.found_checkpoint import FoundCheckpoint
from ampsweep.training.trainer import Trainer


def take_checkpoint(trainer: Trainer, directory: Path, config_hash: str, model_name: str, arm: str) -> Path:
    """Write the trainer's whole state to a run's `directory`; waits for the device. Each rank calls it.

    `config_hash` is equal for all trainings whose steps take the same memory. An OSError is raised on all ranks.
    """
    checkpoint = checkpoint_now(trainer, config_hash, model_name, arm)
    if trainer.parallel is SINGLE:
        return save_checkpoint(checkpoint, directory)
    from ampsweep.training.sharded_checkpoint import save_together  # imports torch.distributed

    buffers = {name for name, _ in trainer.model.named_buffers()}
    return save_together(checkpoint, directory, trainer.parallel, buffers=buffers)


def checkpoint_now(trainer: Trainer, config_hash: str = "", model_name: str = "", arm: str = "") -> Checkpoint:
    """Return the trainer's whole state, sharing its tensors with the training; waits for the device."""
    return Checkpoint(
        step=trainer.step,
        next_batch=trainer.next_batch,
        batch_size=trainer.data.batch_size,
        applied_steps=int(trainer.instruments.applied_steps()),
        config_hash=config_hash,
        model_name=model_name,
        arm=arm,
        model=trainer.model.state_dict(),
        optimizers={
            name: {
                "class": class_name(optimizer),
                "state": optimizer.state_dict(),
                "parameters": _parameter_names(optimizer, trainer.model),
            }
            for name, optimizer in trainer.optimizers.items()
        },
        scaler=trainer.precision.state_dict(),
        scale_monitor=trainer.instruments.state_dict(),
        rng=rng_state(trainer.precision.device),
        observed=trainer.instruments.observed(),
        evaluations=trainer.validation.evaluations,
    )


def keep_weights(trainer: Trainer, directory: Path, kind: str) -> KeptWeights:
    """Write `checkpoints/KIND.pt` atomically, on rank 0; each rank calls it. An OSError is raised on all ranks.

    The file holds plain tensors in the dtype of the parameters; `torch.load(weights_only=True)` reads it.
    """
    file, is_first = Path(CHECKPOINTS) / f"{kind}.pt", trainer.parallel.rank == 0
    state: dict[str, Any] = trainer.model.state_dict()
    for name, value in state.items():
        if hasattr(value, "full_tensor"):  # a sharded DTensor: gathered one at a time
            whole = value.full_tensor()
            state[name] = whole.cpu() if is_first else None

    def write() -> None:
        (directory / CHECKPOINTS).mkdir(exist_ok=True)
        with replacing(directory / file) as stream:
            torch.save(state, stream)

    together(trainer.parallel, write if is_first else lambda: None)
    value = trainer.recorder.values.get(trainer.config.metric)
    return KeptWeights(file=file.as_posix(), step=trainer.step, value=value)


def resume(trainer: Trainer, found: FoundCheckpoint, config_hash: str | None = None) -> list[str]:
    """Restore the trainer's state from a checkpoint; return sentences for the user on what did not carry over.

    Each rank calls it. If the checkpoint has the same `config_hash`, its memory peaks carry over. Raises as
    `FoundCheckpoint.next_batch` does.
    """
    device = trainer.precision.device
    checkpoint, notes = found.restored(trainer.model, trainer.data.batch_size, trainer.parallel, device)
    checkpoint = _with_master_weights(checkpoint)
    own = trainer.model.state_dict() | _master_weights(trainer)
    notes += _converted("parameters", checkpoint.model.values(), own.values())
    trainer.model.load_state_dict(checkpoint.model)
    notes += _load_optimizers(trainer, checkpoint.optimizers)
    for name, weight in _master_weights(trainer).items():  # even if the optimizer starts fresh
        weight.copy_(checkpoint.model[name])
    note = trainer.precision.load_state_dict(checkpoint.scaler)
    notes += [] if note is None else [note]
    trainer.instruments.load_state_dict(checkpoint.scale_monitor, applied_steps=checkpoint.applied_steps)
    is_same = config_hash == checkpoint.config_hash and checkpoint.world_size == trainer.parallel.world_size
    trainer.instruments.go_on(checkpoint.observed, checkpoint.step, is_same_run=is_same)
    trainer.validation.go_on(checkpoint.evaluations)
    restore_rng_state(checkpoint.rng, device)
    trainer.step, trainer.next_batch = checkpoint.step, checkpoint.next_batch
    if trainer.step >= trainer.num_steps:
        notes.append(f"the checkpoint is of step {trainer.step} of {trainer.num_steps}: nothing is left to train")
    return notes


def _with_master_weights(checkpoint: Checkpoint) -> Checkpoint:
    """Replace the parameters that were rounded from master weights by the master weights.

    A training that keeps master weights takes them from the parameters; any other trains them as its parameters.
    """
    model = copy.copy(checkpoint.model)  # of its own class, with the versions of its modules
    for optimizer in checkpoint.optimizers.values():
        states = state_by_parameter(optimizer)
        model.update({name: state[MASTER_WEIGHT] for name, state in states.items() if MASTER_WEIGHT in state})
    return replace(checkpoint, model=model)


def _master_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the master weights of a training by parameter name."""
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    return {
        names[parameter]: state[MASTER_WEIGHT]  # type: ignore[index]  # keys of a state are parameters
        for optimizer in trainer.optimizers.values()
        for parameter, state in optimizer.state.items()
        if MASTER_WEIGHT in state
    }


def _load_optimizers(trainer: Trainer, saved: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Load the optimizers' states; yield a sentence for each that starts fresh."""
    for name, optimizer in trainer.optimizers.items():
        kind = class_name(optimizer)
        if name not in saved:
            yield f"the checkpoint has no optimizer with the name {name}; {kind} starts fresh"
        elif saved[name]["class"] != kind:
            yield f"the checkpoint's {saved[name]['class']} state is ignored; {kind} starts fresh"
        else:
            _load_optimizer(optimizer, _parameter_names(optimizer, trainer.model), saved[name])
            yield from _converted(f"{kind}'s state", _moments(saved[name]["state"]), _moments(optimizer.state_dict()))


def _moments(state: dict[str, Any]) -> list[Any]:
    """List the per-parameter state that the optimizer casts to the parameter's dtype; step counts are not cast."""
    states = [kept for kept in state["state"].values() if isinstance(kept, dict)]
    return [value for kept in states for key, value in kept.items() if key not in ("step", MASTER_WEIGHT)]


def _converted(what: str, saved: Iterable[Any], own: Iterable[Any]) -> list[str]:
    """Return a sentence if floating-point tensors of a checkpoint are converted to another dtype."""
    before, now = (
        {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}
        for values in (saved, own)
    )
    if before == now or not before or not now:
        return []
    is_exact = all(torch.promote_types(saved_dtype, dtype) == dtype for saved_dtype in before for dtype in now)
    how = "exact, with no more digits than were saved" if is_exact else "rounded"
    names_before, names = (" and ".join(sorted(map(dtype_name, dtypes))) for dtypes in (before, now))
    return [f"the checkpoint's {what} in {names_before} became {names}: {how}"]


def _load_optimizer(optimizer: torch.optim.Optimizer, own: list[str], saved: Mapping[str, Any]) -> None:
    """Load the state of each parameter (by its name in `own`, in the optimizer's order), whatever group it is in now.

    Hyperparameters (arguments of the class) stay those of this run. All other entries of a group are state (a step
    count, an estimate), which is loaded if the parameters are grouped as before.
    """
    groups, saved_groups = optimizer.state_dict()["param_groups"], saved["state"]["param_groups"]
    if [len(group["params"]) for group in groups] == [len(group["params"]) for group in saved_groups]:
        arguments = {*parameters_of(class_of(optimizer)), "params", MAX_GRAD_NORM}
        for group, saved_group in zip(groups, saved_groups, strict=True):
            group |= {key: value for key, value in saved_group.items() if key not in arguments}
    saved_states, states = state_by_parameter(saved), {}
    for number, name in zip(parameter_ids(groups), own, strict=True):
        if name in saved_states:
            states[number] = {key: value for key, value in saved_states[name].items() if key != MASTER_WEIGHT}
    # Entries with string keys belong to the optimizer as a whole.
    states |= {key: value for key, value in saved["state"]["state"].items() if isinstance(key, str)}
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _parameter_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in parameter_ids(optimizer.param_groups)]
