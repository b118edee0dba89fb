"""The blocks of a model: its parts whose parameters FSDP2 gathers one at a time."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn


def roots_of(model: nn.Module, *, in_parts: bool) -> list[nn.Module]:
    """The modules that a step calls."""
    return [*model.children()] if in_parts else [model]


def blocks_of(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The modules that are gathered one at a time, the innermost first.

    They are those whose names match `patterns`; without any, those that the model or a part of it names: in an
    attribute `blocks` that lists modules, or by their classes' names in `_no_split_modules`, as Hugging Face's models
    do.

    Raises:
        ValueError: a pattern matches no module.
    """
    named = {name: module for name, module in model.named_modules() if module is not model}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ValueError(f"parallel.blocks: no module of the model is called {pattern}")
    if patterns:
        chosen = [one for name, one in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    else:
        classes = {str(name) for one in model.modules() for name in getattr(one, "_no_split_modules", None) or ()}
        listed = {id(block) for module in model.modules() for block in _listed_blocks(module)}
        chosen = [one for one in named.values() if id(one) in listed or type(one).__name__ in classes]
    return [one for one in reversed(chosen) if not isinstance(one, nn.ModuleList | nn.ModuleDict)]


def _listed_blocks(module: nn.Module) -> Iterable[object]:
    blocks = getattr(module, "blocks", None)
    return blocks if isinstance(blocks, nn.ModuleList | nn.Sequential | list | tuple) else ()
