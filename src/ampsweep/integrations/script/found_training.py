"""The optimizers and models of a training, found among the objects of the process when it takes its first step."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from torch import nn
from torch.optim import Optimizer

T = TypeVar("T")


@dataclass(frozen=True)
class FoundTraining:
    optimizers: list[Optimizer]
    model: nn.Module
    wholes: frozenset[int]
    """Identities of the modules that hold all trained parameters of a model: its wrappers and itself."""


def find_training(first: Optimizer, belongs: Callable[[Optimizer], bool] | None = None) -> FoundTraining:
    """Find what is trained by an optimizer that takes a step, and by those beside it that belong to its training.

    A model is an outermost module with trained parameters. No hook on modules is needed, which would cost every call,
    be copied and pickled with the model, and make torch.compile compile again.
    """
    gc.collect()  # what is left of earlier trainings is none of this one
    everything = gc.get_objects()
    optimizers, taken = [first], trained_by(first)
    for other in _of_type(everything, Optimizer):
        # A wrapper of an optimizer, such as Accelerate's and Lightning's, shares its parameters.
        if belongs is not None and not belongs(other):
            continue
        if hasattr(other, "param_groups") and taken.isdisjoint(own := trained_by(other)) and own:
            optimizers.append(other)
            taken |= own
    modules = list(_of_type(everything, nn.Module))
    del everything
    inner: set[int] = set()
    for module in modules:
        with suppress(AttributeError):  # not initialized yet
            inner |= {id(child) for child in module.children()}
    roots = [(root, held) for root in modules if id(root) not in inner and (held := _held(root) & taken)]
    roots.sort(key=lambda found: (len(found[1]), sum(1 for _ in found[0].modules())), reverse=True)
    chosen: dict[nn.Module, set[int]] = {}
    for root, held in roots:  # another module may hold layers of a model a second time
        if not held <= set().union(*chosen.values()):
            chosen[root] = held
    wholes = frozenset(id(part) for root, held in chosen.items() for part in _wholes(root, held))
    if len(chosen) == 1:
        return FoundTraining(optimizers, next(iter(chosen)), wholes)
    if not chosen:
        parameters = [p for own in optimizers for group in own.param_groups for p in group["params"]]
        return FoundTraining(optimizers, nn.ParameterList(parameters), wholes)
    several = type(" and ".join(type(model).__name__ for model in chosen), (nn.ModuleList,), {})
    return FoundTraining(optimizers, several(chosen), wholes)


def trained_by(optimizer: Optimizer) -> set[int]:
    """Identities of an optimizer's parameters."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _of_type(objects: Sequence[object], kind: type[T]) -> Iterator[T]:
    """Those of a type; `isinstance` would ask lazy proxies for their class, which imports what they stand for."""
    return (found for found in objects if issubclass(type(found), kind))  # type: ignore[misc]


def _held(module: nn.Module) -> set[int]:
    with suppress(AttributeError):
        return {id(p) for p in module.parameters()}
    return set()


def _wholes(module: nn.Module, held: set[int]) -> Iterator[nn.Module]:
    yield module
    for child in module.children():
        if held <= _held(child):
            yield from _wholes(child, held)
