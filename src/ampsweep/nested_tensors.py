"""Tensors in nested lists, tuples, mappings and dataclasses: the one walker and the one mapper."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from tensors_in(getattr(value, one.name))


def plain_tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested values; instead of one that wraps others, such as a DTensor, these, and
    instead of a sparse one its indices and values."""
    for tensor in tensors_in(value):
        if tensor.is_sparse:
            coalesced = tensor.detach().coalesce()  # the same one, if it is
            yield from (coalesced.indices(), coalesced.values())
        elif wraps_others(tensor):
            names: list[str] = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
            yield from plain_tensors_in([getattr(tensor, name) for name in names])
        else:
            yield tensor


def wraps_others(tensor: Tensor) -> bool:
    """Tell whether a tensor has no bytes of its own but those of the tensors it wraps."""
    return is_traceable_wrapper_subclass(tensor)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in nested values, each of which keeps its kind; a mapping that is no dict becomes one.

    Every container in which nothing changes stays as it is.
    """  # in Python that torch.compile takes in without a break
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        items = [map_tensors(item, change) for item in value]
        if all(map(_is, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, change) for key, item in value.items()}
        if all(map(_is, changed.values(), value.values())):
            return value
        if not isinstance(value, dict):
            return changed
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if is_dataclass(value) and not isinstance(value, type):
        old = {one.name: getattr(value, one.name) for one in fields(value) if hasattr(value, one.name)}
        new = map_tensors(old, change)
        if new is old:
            return value
        made: Any = copy.copy(value)
        for name in old:
            object.__setattr__(made, name, new[name])  # frozen ones, too
        return made
    return value


def _is(one: Any, other: Any) -> bool:
    return one is other
