"""The arguments of a call: their places and names, and the call with some of them changed."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey, tree_leaves_with_path, tree_map_with_path

from ampsweep.doctor.source_edit import Place

Remedy = dict[Place, torch.dtype | float]
"""New operands by their places: tensors are cast to a dtype, numbers replaced by another."""


def leaves(args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Place, Any]]:
    """All arguments with their places, also those within lists and tuples."""
    found = tree_leaves_with_path({**dict(enumerate(args)), **kwargs})
    return [(_place(path), value) for path, value in found]


def can_change(args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> bool:
    """Tell whether all that a remedy changes is among the arguments."""
    found = dict(leaves(args, kwargs))
    return all(isinstance(found.get(place), Tensor | float | int) for place in remedy)


def changed_arguments(
    args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with a remedy applied."""

    def change(path: Any, value: Any) -> Any:
        new = remedy.get(_place(path), value)
        return value.to(new) if isinstance(new, torch.dtype) and isinstance(value, Tensor) else new

    changed = tree_map_with_path(change, {**dict(enumerate(args)), **kwargs})
    return [changed[number] for number in range(len(args))], {name: changed[name] for name in kwargs}


def argument_name(func: Any, function: str, place: Place) -> str:
    """The name of an argument: that of a Python function, else as the schema of torch's operator has it."""
    first, *inner = place
    names = _names(func, function)
    name = first if isinstance(first, str) else names[first] if first < len(names) else f"argument {first + 1}"
    return name + "".join(f"[{one}]" for one in inner)


def _names(func: Any, function: str) -> list[str]:
    """The names of positional arguments."""
    if function == "__setitem__":
        return ["self", "index", "value"]
    if hasattr(inspect.unwrap(func), "__code__"):
        parameters = inspect.signature(func).parameters.values()
        return [one.name for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    overloads = [func]
    if not hasattr(func, "_schema"):
        packet = getattr(torch.ops.aten, function, None)
        overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return max(([one.name for one in each._schema.arguments] for each in overloads), key=len, default=["self"])


def _place(path: Any) -> Place:
    return tuple(one.idx if isinstance(one, SequenceKey) else one.key for one in path)
