"""The protocol of tasks, their turns, and what they take from a model: its output, and in which precision."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Task(Protocol):
    """A loss, computed from a model and a batch. The caller sets training or evaluation mode and autocast.

    A task keeps no state: what changes in a training lies in the model, whose state a checkpoint holds.
    """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Compute the mean loss over the batch, a scalar attached to the graph."""

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], int]:
        """Compute detached scalar means over the batch, among them ``loss``, and the number of items averaged over.

        The values stay on the device; reading them is left to the caller, because it makes the host wait.
        """


Loss = Callable[[Any, Any], Tensor | Sequence[Tensor]]
"""A function of the model and a batch to a mean loss over it, a scalar attached to its graph, or to several."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A part of a step: losses of its own batches, and then a step of each of its optimizers.

    Only what these train gets gradients. Each loss has its own backward pass; what they share of the graph is kept.
    """

    name: str
    """The name under which its loss is logged."""
    loss: Loss
    trains: Mapping[str, Sequence[str]]
    """Names of optimizers, each with patterns (as of `fnmatch`) of the names of the parameters that it trains."""


@runtime_checkable
class HasTurns(Protocol):
    """A task whose step has several turns, or several optimizers, in place of one `loss` and one optimizer for all.

    The models of such a task are submodules of one, a ``torch.nn.ModuleDict`` for example.
    """

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of a step in their order. One that is to be taken several times stands there as often."""


@runtime_checkable
class FollowsStep(Protocol):
    """A task that changes more of its model than optimizers do: a target network, averages of weights."""

    def after_step(self, model: nn.Module) -> None:
        """Change the model after an optimizer step, a skipped one too; no gradient is recorded meanwhile."""


def turns_of(task: Task) -> Sequence[Turn]:
    """The turns of a step; one, of all parameters, where the task has none of its own."""
    if isinstance(task, HasTurns):
        return task.turns
    return (Turn(name="loss", loss=task.loss, trains={"optimizer": ["*"]}),)


def at_least_float32(output: Tensor) -> Tensor:
    """Cast a model's half-precision output to float32, as torch's own losses do under autocast.

    bfloat16 would round a loss to 3 digits, coarser than the gaps that a comparison looks for.
    """
    if output.dtype == torch.float32:  # the usual case, in every step
        return output
    return output.to(torch.promote_types(output.dtype, torch.float32))


class OutputError(ValueError):
    """Raised for a model that does not return what the task takes from it."""


def output_tensor(output: Any, name: str | None) -> Tensor:
    """Find the tensor in a model's output: the output itself, or its part of this key, index or attribute.

    Raises:
        OutputError: there is no such tensor; the sentence names those that there are.
    """
    if name is None and isinstance(output, Tensor):  # the usual case, in every step
        return output
    part = None if name is None or isinstance(output, Tensor) else _part(output, name)
    if isinstance(part, Tensor):
        return part
    there = _description(output)
    if name is not None:
        raise OutputError(f"task.output={name}: {there}")
    raise OutputError(f"{there}; task.output must name the one that the task takes")


def _part(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return next((part for key, part in output.items() if str(key) == name), None)
    if isinstance(output, tuple | list) and name.isdecimal():
        return output[int(name)] if int(name) < len(output) else None
    return getattr(output, name, None)


def _description(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Tensor):
        return f"the model returns a {kind}, which has no parts"
    names = [name for name in _names(output) if isinstance(_part(output, name), Tensor)]
    if not names:
        return f"the model returns a {kind}, which holds no tensor"
    return f"the model returns a {kind} with the {'tensors' if len(names) > 1 else 'tensor'} {', '.join(names)}"


def _names(output: Any) -> Iterator[str]:
    """Names of parts: keys; of a tuple its fields or else its indices; attributes of anything else."""
    if isinstance(output, Mapping):
        yield from map(str, output)
    elif isinstance(output, tuple | list):
        yield from getattr(output, "_fields", map(str, range(len(output))))
    else:
        yield from (name for name in dir(output) if not name.startswith("_"))
