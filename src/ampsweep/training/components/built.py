"""The parts of one training (model, data, optimizer and so on), built from its config."""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.schema import Config, component_name
from ampsweep.data.base import Data, for_rank
from ampsweep.observe.feeding import feeding
from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.parallel.fitting import check_fit
from ampsweep.precision import Precision
from ampsweep.precision.support import ModeUnavailableError
from ampsweep.tasks.base import HasTurns, Task, turns_of
from ampsweep.text import first_line
from ampsweep.training.checkpoint import seed_everything
from ampsweep.training.components.instantiate import build_component
from ampsweep.training.components.optimizer import build_optimizers
from ampsweep.training.turns import TrainedTurn, trained_parts, trained_turns

_SEEDS_APART: Final = 1_000_003
"""Between the seeds of two ranks, so that the next seed of a sweep is not another rank's."""

_ENABLE_CHECKPOINTING: Final = ("gradient_checkpointing_enable", "activation_checkpointing_enable")
"""Methods by which a model is told to recompute activations; the second is the newer name."""


@dataclass(frozen=True)
class Built:
    """The parts of one training, on their device and ready to run."""

    model: nn.Module
    data: Data
    task: Task
    precision: Precision
    optimizers: dict[str, torch.optim.Optimizer]
    turns: tuple[TrainedTurn, ...]
    num_steps: int
    parallel: Parallel = SINGLE


def build(config: Config, device: torch.device, data: Data, parallel: Parallel = SINGLE) -> Built:
    """Build the other parts around the data. The same seed gives the same initial weights and batches in every arm.

    Raises:
        UserError: a part refuses its settings.
    """
    precision = parallel.precision(config.precision, device)
    precision.cudnn_benchmark = config.trainer.cudnn_benchmark
    seed_everything(config.seed)
    model = build_model(config)
    adapt_model(precision, model)
    task: Task = build_component("task", config.task)
    try:
        check_fit(model, config.parallel, config.precision, device.type, in_parts=isinstance(task, HasTurns))
        model = parallel.distribute(model, precision, in_parts=isinstance(task, HasTurns))
    except ValueError as error:
        raise UserError(str(error)) from error
    built = build_around(config, precision, model, for_rank(data, parallel.rank, parallel.world_size), task=task)
    if parallel.world_size > 1:  # dropout and noise are drawn anew on each rank, and are the first one's on none
        seed_everything((config.seed + parallel.rank * _SEEDS_APART) % 2**32)
    return replace(built, parallel=parallel)


def adapt_model(precision: Precision, model: nn.Module) -> None:
    """Fit the modules of the model to its precision, before anything holds its parts.

    Raises:
        UnsupportedError: the mode cannot compute this model here.
        UserError: a setting of the precision is wrong for the model.
    """
    try:
        precision.adapt(model)
    except ModeUnavailableError as error:
        raise UnsupportedError(str(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error


def build_around(
    config: Config,
    precision: Precision,
    model: nn.Module,
    data: Data,
    device: torch.device | None = None,
    *,
    task: Task | None = None,
) -> Built:
    """Build the other parts around a model and data that are on their device, or stand for those on `device`.

    Raises:
        UserError: a part refuses its settings.
    """
    task = task or build_component("task", config.task)
    if config.trainer.compile:
        _compile(model, task)
    turns = turns_of(task)
    if config.trainer.accumulate_dtype is not None:
        _accumulate_in(model, getattr(torch, config.trainer.accumulate_dtype))
    optimizers = build_optimizers(config.optimizer, model, trained_parts(turns), precision, device=device)
    num_steps = steps_of(config, data, len(turns))
    return Built(model, data, task, precision, optimizers, trained_turns(turns, optimizers), num_steps)


def build_model(config: Config) -> nn.Module:
    """The model as its constructor makes it, on the current default device, with the trainer's layout options."""
    model: nn.Module = build_component("model", config.model)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model._target_={config.model['_target_']} gave a {type(model).__name__}, not a torch.nn.Module"
        )
    if (lazy := next((module for module in model.modules() if _has_no_size(module)), None)) is not None:
        raise UserError(
            f"model={component_name(config.model)} has a {type(lazy).__name__}, whose sizes are not known before its "
            "first batch; give it its sizes"
        )
    if config.trainer.activation_checkpointing:
        _enable_checkpointing(model)
    if config.trainer.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _enable_checkpointing(model: nn.Module) -> None:
    """Have the model recompute activations, by the method that Hugging Face's models have for it, of either name.

    Raises:
        UserError: it has no such method, or the method refuses.
    """
    asked = "trainer.activation_checkpointing=true"
    found = [enable for name in _ENABLE_CHECKPOINTING if (enable := getattr(model, name, None)) is not None]
    if not found:
        names = " or ".join(f"{name}()" for name in _ENABLE_CHECKPOINTING)
        raise UserError(f"{asked}: {type(model).__name__} has no {names}")
    try:
        found[-1]()
    except ValueError as error:
        raise UserError(f"{asked}: {first_line(str(error))}") from error


def _accumulate_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let gradients be of this dtype, in which backward passes add them up."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.grad_dtype = dtype


def _compile(model: nn.Module, task: Task) -> None:
    """Compile the model, or the models of which it consists where the task calls these."""
    for part in model.children() if isinstance(task, HasTurns) else [model]:
        is_torchs = str(getattr(part.forward, "__module__", "")).startswith("torch.nn.")
        if is_torchs and type(part).compile is nn.Module.compile:
            # torch.compile takes torch's own modules in where they are called, but compiles none that is called first.
            part.forward = torch.compile(part.forward)
        else:
            part.compile()


def build_data(config: Config, device: torch.device) -> Data:
    """The data set.

    Raises:
        UserError: what `data._target_` gives has no batches; a torch Dataset goes into a MapDataset.
    """
    with feeding():
        data = build_component("data", config.data, seed=config.seed, device=device)
    if not isinstance(data, Data):
        target, kind = config.data["_target_"], type(data).__name__
        missing = [name for name in vars(Data) if not (name.startswith("_") or hasattr(data, name))]
        raise UserError(f"data._target_={target} gave a {kind} without {', '.join(missing)}")
    return data


def steps_of(config: Config, data: Data, num_turns: int = 1) -> int:
    """Steps of the whole run, of so many turns each.

    Raises:
        UserError: a length in epochs for endless data, or an epoch shorter than one effective batch.
    """
    trainer = config.trainer
    if trainer.epochs is None:
        assert trainer.steps is not None
        return trainer.steps
    if data.num_train_batches is None:
        raise UserError(f"trainer.epochs={trainer.epochs}: data={config.data['name']} has no epochs; use trainer.steps")
    steps = trainer.epochs * data.num_train_batches // (trainer.grad_accum_steps * num_turns)
    if steps == 0:
        turns = "" if num_turns == 1 else f" in each of {num_turns} turns"
        raise UserError(
            f"trainer.epochs={trainer.epochs}: {float(data.num_train_batches):g} batches an epoch make no step of "
            f"trainer.grad_accum_steps={trainer.grad_accum_steps} batches{turns}"
        )
    return steps


def _has_no_size(module: nn.Module) -> bool:
    """Tell whether a parameter or buffer of the module itself gets its shape from its first batch."""
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(is_lazy(tensor) for tensor in own)
