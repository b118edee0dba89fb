"""The turns of a step, each with its optimizers and the parameters that they train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from ampsweep.config.errors import UserError
from ampsweep.tasks.base import Loss, PrecedesStep, Turn


@dataclass(frozen=True)
class TrainedTurn:
    """A turn of a step with its optimizers."""

    name: str
    loss: Loss
    optimizers: tuple[Optimizer, ...]
    inputs: list[nn.Parameter] | None  # the parameters that get gradients; None for all
    ends_round: bool  # the scale is updated after this turn: the step ends, or one of its optimizers steps again next


def trained_parts(turns: Sequence[Turn]) -> dict[str, list[str]]:
    """Map the name of each optimizer to patterns of the parameters that it trains; raise a UserError for bad turns."""
    for turn in turns if isinstance(turns, tuple | list) else [turns]:
        if not isinstance(turn, Turn):
            raise UserError(f"a task's turns must be a list of ampsweep.tasks.base.Turn, got {type(turn).__name__}")
    if not turns:
        raise UserError("the task has no turns")
    parts: dict[str, list[str]] = {}
    by_name: dict[str, Turn] = {}
    for turn in turns:
        if by_name.setdefault(turn.name, turn) != turn:
            raise UserError(f"the task has two different turns with the name {turn.name}")
        if not turn.trains:
            raise UserError(f"the turn {turn.name} of the task trains nothing")
        for name, patterns in turn.trains.items():
            if isinstance(patterns, str):  # each letter would be a pattern
                raise UserError(f"the turn {turn.name} of the task trains {name} by {patterns!r}, which is not a list")
            if parts.setdefault(name, [*patterns]) != [*patterns]:
                raise UserError(f"the optimizer {name} trains other parameters in the turn {turn.name} than before")
    return parts


def trained_turns(
    turns: Sequence[Turn], optimizers: Mapping[str, Optimizer], *, compiled: bool = False
) -> tuple[TrainedTurn, ...]:
    """Give each turn its optimizers, and end a round of turns before an optimizer steps twice. A compiled loss is one
    graph with its model: logits of a large vocabulary are never written in float32."""
    trained: list[TrainedTurn] = []
    stepped: set[str] = set()
    for number, turn in enumerate(turns):
        own = tuple(optimizers[name] for name in turn.trains)
        groups = [group for optimizer in own for group in optimizer.param_groups]
        inputs = None if len(turns) == 1 else [parameter for group in groups for parameter in group["params"]]
        stepped |= {*turn.trains}
        ends_round = number + 1 == len(turns) or not stepped.isdisjoint(turns[number + 1].trains)
        if ends_round:
            stepped.clear()
        loss = torch.compile(turn.loss) if compiled else turn.loss
        trained.append(TrainedTurn(turn.name, loss, own, inputs, ends_round))
    return tuple(trained)


def preparation(task: PrecedesStep, model: nn.Module, turns: Sequence[TrainedTurn]) -> Callable[[int], bool]:
    """Return a function that lets the task prepare the model for a step; its result: other parameters are trained now,
    and turns give gradients to those alone."""
    every = [*model.parameters()]
    limited = [(turn.inputs, [*turn.inputs]) for turn in turns if turn.inputs is not None]

    @torch.no_grad()
    def prepare(step: int) -> bool:
        before = [parameter.requires_grad for parameter in every]
        task.before_step(model, step)
        if before == [parameter.requires_grad for parameter in every]:
            return False
        for inputs, own in limited:
            inputs[:] = [parameter for parameter in own if parameter.requires_grad]
        return True

    return prepare
