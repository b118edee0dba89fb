"""Check that model, data and task fit each other, with one batch and a model on the meta device."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampsweep.config.errors import UserError
from ampsweep.config.schema import Config
from ampsweep.config.value_checks import metric_users
from ampsweep.data.base import Data, as_model_input, stop_workers
from ampsweep.data.generators import restored
from ampsweep.metrics import METRICS
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.memory_limit import TensorBytes
from ampsweep.precision.fp32_modules import find_modules
from ampsweep.recorder.media import MediaError, prepared
from ampsweep.tasks.base import (
    FollowsStep,
    HasTurns,
    MeasuresWholeSet,
    OutputError,
    PrecedesStep,
    ShowsMedia,
    Task,
    Turn,
    turns_of,
    with_metrics,
)
from ampsweep.text import one_line
from ampsweep.training.components.built import build_model
from ampsweep.training.components.instantiate import build_component
from ampsweep.training.turns import trained_parts

_REHEARSE_UP_TO = 50_000_000
"""A user's own model that fails on the meta device is tried on the CPU up to this number of parameters."""


class LossError(ValueError):
    """Raised if a task returns something that cannot be trained on or evaluated."""


_SURE: Final = (LossError, OutputError, MediaError)
"""Errors that are the same on every device; their texts are sentences."""


@dataclass(frozen=True)
class CheckedModel:
    """A model that accepts the batches of its data."""

    model: nn.Module  # on the meta device
    output_bytes: int | None
    """Bytes of a batch and of all operator outputs of its forward pass in float32, for the largest turn; None if they
    could not be counted."""
    turns: Sequence[Turn]
    in_parts: bool = False  # True if a step calls the model's children and not the model
    calls_model: bool = True
    unused: Sequence[str] = ()  # names of parameters that no loss depends on, as far as that was tried


def check_model(config: Config, data: Data) -> CheckedModel:
    """Rehearse a step and an evaluation on one batch each, if possible on the meta device.

    Losses are computed and differentiated turn by turn as in a training, outside autocast and without optimizer steps.
    Parts of the suite itself, which have gradients and an evaluation, compute losses only. Keeps all random states.
    UserError: a part refuses its settings, or the parts cannot be trained together.
    """
    with restored():
        task = build_component("task", config.task)
        with _refused_as(f"task={_name(config.task)} has no turns"):
            turns = turns_of(task)
        trained_parts(turns)
        with torch.device("meta"):
            model = build_model(config)
        try:
            find_modules(model, config.precision.fp32_modules)
        except ValueError as error:
            raise UserError(f"model={_name(config.model)}: {error}") from error
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UserError(f"model={_name(config.model)} has no parameters to train")
        rehearsal = _Rehearsal(config, data, task, turns)
        try:
            return rehearsal.on(model)
        except (Exception, SystemExit) as error:
            if isinstance(error, _SURE) or not rehearsal.is_own:
                raise UserError(_misfit(config, error)) from error
        # A model that fails on the meta device, for example because it depends on values, is tried on the CPU.
        if sum(parameter.numel() for parameter in model.parameters()) > _REHEARSE_UP_TO:
            return CheckedModel(model, None, turns, isinstance(task, HasTurns))
        try:
            return replace(rehearsal.on(build_model(config)), model=model)
        except (Exception, SystemExit) as error:
            raise UserError(_misfit(config, error)) from error


class _Rehearsal:
    """A training step and the first batch of an evaluation, without optimizers."""

    def __init__(self, config: Config, data: Data, task: Task, turns: Sequence[Turn]) -> None:
        self._channels_last, self._task, self._turns = config.trainer.channels_last, task, turns
        self.is_own = any(_has_own_code(part) for part in (config.model, config.data, config.task))
        """True if a part is the user's own code."""
        self._metric = config.trainer.metric if any(metric_users(config)) else None
        self._sets = ["", *(f"{name}/" for name in getattr(data, "val_names", ()))]
        with _refused_as(f"data={_name(config.data)} has no first batch"):
            self._batch = data.train_batch(0)
        try:
            with _refused_as(f"data={_name(config.data)} has no validation batch"):
                self._val_batch = next(iter(data.val_batches()), None) if self.is_own or self._metric else None
        finally:
            stop_workers(data)

    def on(self, model: nn.Module) -> CheckedModel:
        model._compiled_call_impl = None  # undoes Module.compile(): this is one step, not worth compiling
        device = next(model.parameters()).device
        model.train()
        calls: list[object] = []
        called = model.register_forward_pre_hook(lambda *_: calls.append(None))
        output_bytes, unused = self._take_turns(model, device)
        called.remove()
        with torch.no_grad():
            if isinstance(self._task, FollowsStep):
                self._task.after_step(model)
            if self._val_batch is not None:
                model.eval()
                has_outputs = isinstance(self._task, MeasuresWholeSet)
                found = self._task.evaluate(model, self._moved(self._val_batch, device))
                _require_means(found, has_outputs=has_outputs)
                given = [f"val/{of_set}{name}" for of_set in self._sets for name in found[0]]
                if self._metric and self._metric not in given and not has_outputs:
                    raise LossError(f"trainer.metric={self._metric}: an evaluation here gives {', '.join(given)}")
                if isinstance(self._task, ShowsMedia):
                    prepared(self._task.media(model, self._moved(self._val_batch, device)))
        in_parts = isinstance(self._task, HasTurns)
        return CheckedModel(model, output_bytes, self._turns, in_parts, bool(calls), sorted(unused))

    def _take_turns(self, model: nn.Module, device: torch.device) -> tuple[int, set[str]]:
        """Compute and differentiate the losses; return the bytes of the largest turn and the unused parameters."""
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        unused, most = set(trained) if self.is_own else set(), 0
        if isinstance(self._task, PrecedesStep):
            with torch.no_grad():
                self._task.before_step(model, 1)
        for turn in self._turns:
            batch = self._moved(self._batch, device)
            with TensorBytes(device) as counted:
                losses = turn.loss(model, batch)
            most = max(most, counted.made_bytes + sum(tensor.nbytes for tensor in tensors_in(batch)))
            if self.is_own:
                _differentiate(losses)
                unused = {name for name in unused if trained[name].grad is None}
            del losses
            model.zero_grad(set_to_none=True)
        return most, unused

    def _moved(self, batch: Any, device: torch.device) -> Any:
        moved = map_tensors(batch, lambda tensor: tensor.to(device))
        return as_model_input(moved, torch.float32, channels_last=self._channels_last)


def _differentiate(losses: Any) -> None:
    several = (losses,) if isinstance(losses, Tensor) else losses
    if not isinstance(several, tuple | list) or not several:
        got = f"{'an empty ' if isinstance(several, tuple | list) else ''}{type(losses).__name__}"
        raise LossError(f"the loss must be a tensor, or several in a tuple, got {got}")
    several, metrics = with_metrics(losses)
    for name, value in metrics.items():
        if value.dim() != 0 if isinstance(value, Tensor) else not isinstance(value, int | float):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LossError(f"metrics must be numbers or scalar tensors, got {got} as {name}")
        if f"train/{name}" in METRICS:
            raise LossError(f"train/{name} is a figure of the suite; the task must name its metric otherwise")
    for number, loss in enumerate(several, start=1):
        if not isinstance(loss, Tensor):
            raise LossError(f"the loss must be a tensor, got {type(loss).__name__}")
        if loss.dim() != 0:
            raise LossError(f"the loss must be a scalar, got shape {tuple(loss.shape)}")
        if not loss.requires_grad:
            raise LossError("the loss has no gradient: it is detached, or computed from nothing that is trained")
        loss.backward(retain_graph=number < len(several))  # type: ignore[no-untyped-call]


def _require_means(evaluated: Any, *, has_outputs: bool) -> None:
    if not isinstance(evaluated, tuple) or len(evaluated) != 2 or not isinstance(evaluated[0], Mapping):
        raise LossError(f"evaluate must return a mapping of means and a count, got {type(evaluated).__name__}")
    values, count = evaluated
    for name, value in values.items():
        if not isinstance(value, Tensor) or (value.dim() != 0 and not has_outputs):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LossError(f"evaluate must return means that are scalar tensors, got {got} as {name}")
    if not isinstance(count, Number | Tensor):
        raise LossError(f"evaluate must return the number of items that its means are of, got {type(count).__name__}")


@contextmanager
def _refused_as(what: str) -> Iterator[None]:
    """Turn any error of the user's own code into a UserError that begins with `what`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {one_line(error)}") from error


def _has_own_code(value: Any) -> bool:
    """Return True if a part of a config builds anything from code outside the suite."""
    if isinstance(value, dict):
        target = str(value.get("_target_", "ampsweep."))
        return not target.startswith("ampsweep.") or any(map(_has_own_code, value.values()))
    return isinstance(value, list) and any(map(_has_own_code, value))


def _misfit(config: Config, error: BaseException) -> str:
    names = f"model={_name(config.model)} cannot be trained on data={_name(config.data)} with task={_name(config.task)}"
    return f"{names}: {error if isinstance(error, _SURE) else one_line(error)}"


def _name(component: dict[str, Any]) -> str:
    return str(component.get("name") or component["_target_"])
