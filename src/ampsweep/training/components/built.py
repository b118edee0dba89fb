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
from ampsweep.parallel.model_support import check_fit
from ampsweep.precision import Precision
from ampsweep.precision.support import ModeUnavailableError
from ampsweep.tasks.base import HasTurns, PrecedesStep, Task, turns_of
from ampsweep.text import first_line
from ampsweep.training.checkpoint import seed_everything
from ampsweep.training.components.instantiate import build_component
from ampsweep.training.components.optimizer import build_optimizers
from ampsweep.training.turns import TrainedTurn, trained_parts, trained_turns

_SEEDS_APART: Final = 1_000_003  # between two ranks, so that the next seed of a sweep is not another rank's
_ENABLE_CHECKPOINTING: Final = ("gradient_checkpointing_enable", "activation_checkpointing_enable")  # the newer last


@dataclass(frozen=True)
class Built:
    """The parts of one training, on their device."""

    model: nn.Module
    data: Data
    task: Task
    precision: Precision
    optimizers: dict[str, torch.optim.Optimizer]
    turns: tuple[TrainedTurn, ...]
    num_steps: int
    parallel: Parallel = SINGLE


def build(config: Config, device: torch.device, data: Data, parallel: Parallel = SINGLE) -> Built:
    """Build the other parts around the data. Equal seeds give equal initial weights and batches in every arm."""
    precision = parallel.precision(config.precision, device)
    precision.cudnn_benchmark = config.trainer.cudnn_benchmark
    seed_everything(config.seed)
    model = build_model(config)
    adapt_model(precision, model)
    task: Task = build_component("task", config.task)
    if config.parallel.strategy == "fsdp2" and isinstance(task, HasTurns) and isinstance(task, PrecedesStep):
        raise UserError("parallel=fsdp2: a task with turns cannot have before_step; use parallel=ddp")
    try:
        check_fit(model, config.parallel, config.precision, device.type, in_parts=isinstance(task, HasTurns))
        model = parallel.distribute(model, precision, in_parts=isinstance(task, HasTurns))
    except ValueError as error:
        raise UserError(str(error)) from error
    built = build_around(config, precision, model, for_rank(data, parallel.rank, parallel.world_size), task=task)
    if parallel.world_size > 1:  # dropout and noise differ between ranks
        seed_everything((config.seed + parallel.rank * _SEEDS_APART) % 2**32)
    return replace(built, parallel=parallel)


def adapt_model(precision: Precision, model: nn.Module) -> None:
    """Adapt the modules of the model to its precision; called before anything else refers to them."""
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
    task: Task,
) -> Built:
    """Build the other parts around a model and data, which are on their device or stand in for those on `device`."""
    if config.trainer.compile:
        _compile(model, task)
    turns = turns_of(task)
    if config.trainer.accumulate_dtype is not None:
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.grad_dtype = getattr(torch, config.trainer.accumulate_dtype)
    optimizers = build_optimizers(config.optimizer, model, trained_parts(turns), precision, device=device)
    num_steps = steps_of(config, data, len(turns))
    # Across processes the model alone is compiled: their engines, which each loss calls, break its graph.
    compiled = config.trainer.compile and config.parallel.strategy == "single"
    trained = trained_turns(turns, optimizers, compiled=compiled)
    return Built(model, data, task, precision, optimizers, trained, num_steps)


def build_model(config: Config) -> nn.Module:
    """Build the model on the current default device, with the trainer's layout options."""
    model: nn.Module = build_component("model", config.model)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model._target_={config.model['_target_']} gave a {type(model).__name__}, not a torch.nn.Module"
        )
    for module in model.modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(map(is_lazy, own)):
            raise UserError(
                f"model={component_name(config.model)} has a {type(module).__name__}, whose sizes are not known before "
                "its first batch; give it its sizes"
            )
    if config.trainer.activation_checkpointing:
        _enable_checkpointing(model)
    if config.trainer.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _enable_checkpointing(model: nn.Module) -> None:
    """Make the model recompute activations, by the method that Hugging Face's models have for it (of either name)."""
    setting = "trainer.activation_checkpointing=true"
    found = [enable for name in _ENABLE_CHECKPOINTING if (enable := getattr(model, name, None)) is not None]
    if not found:
        names = " or ".join(f"{name}()" for name in _ENABLE_CHECKPOINTING)
        raise UserError(f"{setting}: {type(model).__name__} has no {names}")
    try:
        found[-1]()
    except ValueError as error:
        raise UserError(f"{setting}: {first_line(str(error))}") from error


def _compile(model: nn.Module, task: Task) -> None:
    """Compile the model, or each of its submodels if the task calls these."""
    for module in model.children() if isinstance(task, HasTurns) else [model]:
        is_torchs = str(getattr(module.forward, "__module__", "")).startswith("torch.nn.")
        if is_torchs and type(module).compile is nn.Module.compile:
            # torch.compile skips the outermost module if its forward is torch's own.
            module.forward = torch.compile(module.forward)
        else:
            module.compile()


def build_data(config: Config, device: torch.device) -> Data:
    """Build the data; raise a UserError for objects without the methods of `Data`, such as a torch Dataset."""
    with feeding():
        data = build_component("data", config.data, seed=config.seed, device=device)
    if not isinstance(data, Data):
        target, kind = config.data["_target_"], type(data).__name__
        missing = [name for name in vars(Data) if not (name.startswith("_") or hasattr(data, name))]
        raise UserError(f"data._target_={target} gave a {kind} without {', '.join(missing)}")
    return data


def steps_of(config: Config, data: Data, num_turns: int = 1) -> int:
    """Return the number of steps of the run; raise a UserError for epochs of endless data or without a step."""
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
