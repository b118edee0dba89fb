"""The protocol of tasks, their turns, and the precision that their losses are computed in."""

from collections.abc import Callable, Mapping, Sequence
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
    """A part of a step: losses of batches of its own, and then a step of each of its optimizers.

    Only what these optimizers train gets gradients. Of several losses each has a backward pass of its own, and what
    they share of the graph is kept until the last.
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
    """Cast a model's half-precision output to float32; float32 and wider stay as they are.

    Losses are sums over many values, and bfloat16 would round the result to 3 digits, coarser than the gaps that a
    comparison looks for. Under autocast torch's own losses do the same.
    """
    if output.dtype == torch.float32:  # the usual case, in every step
        return output
    return output.to(torch.promote_types(output.dtype, torch.float32))
