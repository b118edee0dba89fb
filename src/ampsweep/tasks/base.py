"""The protocol of tasks and their turns, and helpers to find a model's output and cast it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Task(Protocol):
    """A loss, computed from a model and a batch. The caller sets training or evaluation mode and autocast.

    A task keeps no state: everything that changes in a training belongs to the model, which checkpoints save.
    """

    def loss(self, model: nn.Module, batch: Any) -> "Losses":
        """Compute the mean loss over the batch, a scalar attached to the graph, perhaps with `Metrics` in a tuple."""

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], int]:
        """Compute detached scalar means over the batch, including ``loss``, and the number of items averaged over.

        The values stay on the device, since reading them makes the host wait.
        """


Metrics = Mapping[str, Tensor | float]
"""Means over a batch by name, 0-dim tensors or numbers; rows have their means over micro-batches and ranks."""

Losses = Tensor | Sequence[Tensor] | Sequence[Tensor | Metrics]  # mean losses; metrics last

Loss = Callable[[Any, Any], Losses]  # of model and batch


def with_metrics(losses: Losses) -> tuple[Sequence[Tensor], Metrics]:
    """Separate what a loss returns into the losses and the metrics beside them."""
    if isinstance(losses, Tensor):  # the usual case, in every step
        return (losses,), {}
    several: Any = losses
    return (several[:-1], several[-1]) if isinstance(several[-1], Mapping) else (several, {})


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A part of a step: losses of its own batches, then a step of each of its optimizers.

    Only parameters that these train get gradients. Each loss has its own backward pass, which keeps shared graphs.
    """

    name: str  # under which the loss is logged
    loss: Loss
    trains: Mapping[str, Sequence[str]]  # by optimizer, patterns (as for `fnmatch`) of names of its parameters


@runtime_checkable
class HasTurns(Protocol):
    """A task whose step has several turns or optimizers, in place of one `loss`; its models are submodules of one."""

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of a step in order; a turn taken several times is listed as often."""


@runtime_checkable
class FollowsStep(Protocol):
    """A task that updates its model after each step: a target network, weight averaging."""

    def after_step(self, model: nn.Module) -> None:
        """Update the model after an optimizer step, taken or skipped; called under ``torch.no_grad``."""


@runtime_checkable
class PrecedesStep(Protocol):
    """A task that prepares its model for each step, as by freezing parameters, each of which has an optimizer."""

    def before_step(self, model: nn.Module, step: int) -> None:
        """Prepare the model by the step's number, from 1, alone; called under ``torch.no_grad``."""


@runtime_checkable
class MeasuresWholeSet(Protocol):
    """A task with metrics that are no means over batches: F1, AUC, a correlation."""

    def evaluation_metrics(self, outputs: Mapping[str, Tensor]) -> Mapping[str, float | Tensor]:
        """Compute metrics, logged as ``val/NAME``, over a whole validation set, which every rank has.

        ``outputs`` has the values of ``evaluate`` that are no scalars, on the CPU, joined along their first dimension.
        """


@runtime_checkable
class ShowsMedia(Protocol):
    """A task that shows images and tables of its model."""

    def media(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Make images and tables by name (see `ampsweep.recorder.media`) in each evaluation, of its first batch."""


def turns_of(task: Task) -> Sequence[Turn]:
    """Return the turns of a step; a task without turns has one that trains all parameters."""
    if isinstance(task, HasTurns):
        return task.turns
    return (Turn(name="loss", loss=task.loss, trains={"optimizer": ["*"]}),)


def at_least_float32(output: Tensor) -> Tensor:
    """Cast half precision to float32, as torch's losses do under autocast: bfloat16 would round a loss to 3 digits."""
    if output.dtype == torch.float32:  # the usual case, in every step
        return output
    return output.to(torch.promote_types(output.dtype, torch.float32))


class OutputError(ValueError):
    """Raised for a model output without the tensor that the task needs."""


def output_tensor(output: Any, name: str | None) -> Tensor:
    """Return the tensor in a model's output: the output itself, or its item of this key, index or attribute."""
    if name is None and isinstance(output, Tensor):  # the usual case, in every step
        return output
    item = None if name is None or isinstance(output, Tensor) else _item(output, name)
    if isinstance(item, Tensor):
        return item
    if name is not None:
        raise OutputError(f"task.output={name}: {_description(output)}")
    raise OutputError(f"{_description(output)}; task.output must name the tensor that the task uses")


def _item(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return next((item for key, item in output.items() if str(key) == name), None)
    if isinstance(output, tuple | list) and name.isdecimal():
        return output[int(name)] if int(name) < len(output) else None
    return getattr(output, name, None)


def _description(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Tensor):
        return f"the model returns a {kind}, which has no items"
    names = [name for name in _names(output) if isinstance(_item(output, name), Tensor)]
    if not names:
        return f"the model returns a {kind}, which holds no tensor"
    return f"the model returns a {kind} with the {'tensors' if len(names) > 1 else 'tensor'} {', '.join(names)}"


def _names(output: Any) -> Iterator[str]:
    """Yield keys of a mapping, fields or indices of a tuple, or attributes of anything else."""
    if isinstance(output, Mapping):
        yield from map(str, output)
    elif isinstance(output, tuple | list):
        yield from getattr(output, "_fields", map(str, range(len(output))))
    else:
        yield from (name for name in dir(output) if not name.startswith("_"))
