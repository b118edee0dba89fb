"""Tensors in nested lists, tuples, mappings and dataclasses: iterating over them and changing them."""

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def plain_tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate over all tensors; of wrappers such as DTensor the tensors within, of sparse ones indices and values."""
    for tensor in tensors_in(value):
        if tensor.is_sparse:
            coalesced = tensor.detach().coalesce()  # itself, if it is coalesced
            yield from (coalesced.indices(), coalesced.values())
        elif wraps_others(tensor):
            names: list[str] = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
            yield from plain_tensors_in([getattr(tensor, name) for name in names])
        else:
            yield tensor


def wraps_others(tensor: Tensor) -> bool:
    """Return True if a tensor has no bytes of its own besides those of the tensors it wraps."""
    return is_traceable_wrapper_subclass(tensor)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in nested values; containers keep their types, except that mappings become dicts. A container
    in which nothing changes is returned as it is."""
    # Written so that torch.compile compiles it without a graph break.
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        items = [map_tensors(item, change) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, change) for key, item in value.items()}
        if all(map(operator.is_, changed.values(), value.values())):
            return value
        if not isinstance(value, dict):
            return changed
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)}
        new = map_tensors(old, change)
        if new is old:
            return value
        made: Any = copy.copy(value)
        for name in old:
            object.__setattr__(made, name, new[name])  # frozen dataclasses, too
        return made
    return value
