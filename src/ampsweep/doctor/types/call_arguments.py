"""The arguments of a call: their places and names, and the call with some of them changed."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.source_edit import Place

Remedy = dict[Place, torch.dtype | float]
"""New operands by their places: tensors are cast to a dtype, numbers replaced by another."""

_VARIADIC: Final = inspect.CO_VARARGS


def leaves(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """All arguments with their places, also those within lists and tuples."""
    for number, value in enumerate(args):
        yield from _inner((number,), value)
    for name, value in kwargs.items():
        yield from _inner((name,), value)


def _inner(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _inner((*place, number), one)
    else:
        yield place, value


def can_change(args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> bool:
    """Tell whether all that a remedy changes is among the arguments."""
    found = dict(leaves(args, kwargs))
    return all(place in found and isinstance(found[place], Tensor | float | int) for place in remedy)


def changed_arguments(
    args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with a remedy applied."""

    def change(place: Place, value: Any) -> Any:
        if place in remedy:
            new = remedy[place]
            return value.to(new) if isinstance(new, torch.dtype) else new
        if isinstance(value, list | tuple):
            values = [change((*place, number), one) for number, one in enumerate(value)]
            return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
        return value

    changed = [change((place,), value) for place, value in enumerate(args)]
    return changed, {name: change((name,), value) for name, value in kwargs.items()}


def argument_name(func: Any, function: str, place: Place) -> str:
    """The name of an argument: that of a Python function, else as the schema of torch's operator has it."""
    first, *inner = place
    if isinstance(first, int):
        first, taken = _names(func, function)(first)
        inner = [*inner] if taken is None else [taken, *inner]
    return first + "".join(f"[{one}]" for one in inner)


def _names(func: Any, function: str) -> Callable[[int], tuple[str, int | None]]:
    """A function of a position to the name there, and to the number in it if the name has all that follow."""
    code = getattr(inspect.unwrap(func), "__code__", None)
    if function == "__setitem__":
        names, variadic = ["self", "index", "value"], None
    elif code is not None:
        names = [*code.co_varnames[: code.co_argcount]]
        variadic = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & _VARIADIC else None
    else:
        packet = getattr(torch.ops.aten, function, None)
        overloads = (
            [func]
            if hasattr(func, "_schema")
            else [getattr(packet, one) for one in packet.overloads()]
            if packet
            else []
        )
        names = max(
            ([one.name for one in overload._schema.arguments] for overload in overloads), key=len, default=["self"]
        )
        variadic = None

    def name(position: int) -> tuple[str, int | None]:
        if position < len(names):
            return names[position], None
        return (variadic, position - len(names)) if variadic else (f"argument {position + 1}", None)

    return name
