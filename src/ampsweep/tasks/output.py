"""The tensor that a task takes from what the model returns."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


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
