"""The fit of a model to the strategy of a training: what cannot work is refused before anything starts."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ampsweep.config.schema import ParallelConfig, PrecisionConfig


def check_fit(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> None:
    """Check a model, which may be on the meta device, before it is distributed (see `Parallel.distribute`).

    Raises:
        ValueError: the strategy does not fit the model or the device, with a sentence for the user.
    """
    faults = {"ddp": _replicated, "fsdp2": _sharded}.get(config.strategy)
    if faults is None:
        return
    for fault in faults(model, config, precision, device_type, in_parts=in_parts):
        raise ValueError(f"parallel={config.strategy}: {fault}")


def unused(name: str) -> str:
    """Say that a parameter has no gradient, and what helps."""
    return (
        f"the loss does not depend on the parameter {name}, and DDP waits for its gradient; use "
        "parallel.find_unused_parameters=true, or freeze it with requires_grad=False"
    )


def _replicated(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> Iterator[str]:
    if config.sync_batchnorm and device_type != "cuda":
        yield f"parallel.sync_batchnorm=true: torch has it on CUDA only, not on {device_type}"
    complex_one = next((name for name, one in model.named_parameters() if one.is_complex()), None)
    if complex_one is not None and config.reduce_dtype not in (None, precision.parameters):
        yield f"parallel.reduce_dtype={config.reduce_dtype}: the parameter {complex_one} is complex"


def _sharded(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> Iterator[str]:
    blocks = blocks_of(model, config.blocks)
    if in_parts and (own := next((name for name, _ in model.named_parameters(recurse=False)), None)) is not None:
        yield f"the task calls the model in parts, and its parameter {own} is in none"
    for name, one in model.named_parameters():
        if one.dim() == 0:
            yield f"the parameter {name} is a scalar, which torch cannot shard; give it the shape (1,)"
        if one.is_complex():
            yield f"the parameter {name} is complex, and torch shards the parameters of a block in one dtype"
    paths = {id(module): name for name, module in model.named_modules()}
    owners: dict[int, tuple[int, str]] = {}
    for unit in [*blocks, *roots_of(model, in_parts=in_parts)]:  # the innermost first, as they are sharded
        inner = {id(module) for block in blocks if block is not unit for module in _inside(block, unit)}
        for name, one in _own_parameters(unit, paths[id(unit)], inner):
            owner, first = owners.setdefault(id(one), (id(unit), name))
            if owner != id(unit):
                yield (
                    f"the parameter {name} is also {first}, of another block; name in parallel.blocks what holds both, "
                    "or neither"
                )
    if precision.autocast and config.mixed_precision == "policy":
        for name, module in model.named_modules():
            if all(getattr(module, one, None) is not None for one in ("running_mean", "weight")):
                yield (
                    f"parallel.mixed_precision=policy casts the weights of {name} ({type(module).__name__}), and torch "
                    "has no kernel for them beside running statistics in float32; use "
                    "parallel.mixed_precision=autocast"
                )


def _inside(block: nn.Module, unit: nn.Module) -> list[nn.Module]:
    return [*block.modules()] if any(module is block for module in unit.modules()) else []


def _own_parameters(unit: nn.Module, path: str, inner: set[int]) -> Iterator[tuple[str, nn.Parameter]]:
    for prefix, module in unit.named_modules(prefix=path):
        if id(module) not in inner:
            yield from module.named_parameters(prefix, recurse=False, remove_duplicate=False)


def roots_of(model: nn.Module, *, in_parts: bool) -> list[nn.Module]:
    """The modules that a step calls."""
    return [*model.children()] if in_parts else [model]


def blocks_of(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The modules that are gathered one at a time, the innermost first.

    They are those whose names match `patterns`; without any, those that an attribute `blocks` of the model or a part
    of it lists, or whose classes Hugging Face's `_no_split_modules` names.

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
