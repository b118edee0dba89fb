"""Checks that a model fits the strategy of its training, before anything starts."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ampsweep.config.schema import ParallelConfig, PrecisionConfig


def check_fit(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> None:
    """Raise ValueError if the strategy does not fit the model, maybe on the meta device (see `Parallel.distribute`)."""
    faults = {"ddp": _replicated, "fsdp2": _sharded}.get(config.strategy)
    if faults is None:
        return
    for fault in faults(model, config, precision, device_type, in_parts=in_parts):
        raise ValueError(f"parallel={config.strategy}: {fault}")


def unused(name: str) -> str:
    return (
        f"the loss does not depend on the parameter {name}, and DDP waits for its gradient; use "
        "parallel.find_unused_parameters=true, or freeze it with requires_grad=False"
    )


def _replicated(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> Iterator[str]:
    if config.sync_batchnorm and device_type != "cuda":
        yield f"parallel.sync_batchnorm=true: torch has it on CUDA only, not on {device_type}"
    name_of_complex = next((name for name, weight in model.named_parameters() if weight.is_complex()), None)
    if name_of_complex is not None and config.reduce_dtype not in (None, precision.parameters):
        yield f"parallel.reduce_dtype={config.reduce_dtype}: the parameter {name_of_complex} is complex"


def _sharded(
    model: nn.Module, config: ParallelConfig, precision: PrecisionConfig, device_type: str, *, in_parts: bool
) -> Iterator[str]:
    blocks = blocks_of(model, config.blocks)
    if in_parts and (own := next((name for name, _ in model.named_parameters(recurse=False)), None)) is not None:
        yield f"the task calls the model in parts, and its parameter {own} is in none"
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            yield f"the parameter {name} is a scalar, which torch cannot shard; give it the shape (1,)"
        if parameter.is_complex():
            yield f"the parameter {name} is complex, and torch shards the parameters of a block in one dtype"
    paths = {id(module): name for name, module in model.named_modules()}
    owners: dict[int, tuple[int, str]] = {}
    for unit in [*blocks, *roots_of(model, in_parts=in_parts)]:  # innermost first, as they are sharded
        parts = {id(module) for module in unit.modules()}
        inside = [block for block in blocks if block is not unit and id(block) in parts]
        inner = {id(module) for block in inside for module in block.modules()}
        for name, parameter in _own_parameters(unit, paths[id(unit)], inner):
            owner, first = owners.setdefault(id(parameter), (id(unit), name))
            if owner != id(unit):
                yield (
                    f"the parameter {name} is also {first}, of another block; name in parallel.blocks what holds both, "
                    "or neither"
                )
    if precision.autocast and config.mixed_precision == "policy":
        for name, module in model.named_modules():
            if all(getattr(module, key, None) is not None for key in ("running_mean", "weight")):
                yield (
                    f"parallel.mixed_precision=policy casts the weights of {name} ({type(module).__name__}), and torch "
                    "has no kernel for them beside running statistics in float32; use "
                    "parallel.mixed_precision=autocast"
                )


def _own_parameters(unit: nn.Module, path: str, inner: set[int]) -> Iterator[tuple[str, nn.Parameter]]:
    for prefix, module in unit.named_modules(prefix=path):
        if id(module) not in inner:
            yield from module.named_parameters(prefix, recurse=False, remove_duplicate=False)


def roots_of(model: nn.Module, *, in_parts: bool) -> list[nn.Module]:
    return [*model.children()] if in_parts else [model]


def blocks_of(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The modules to gather one at a time, innermost first; ValueError: a pattern matches no module. Without `patterns`
    of names: those in an attribute `blocks` of any module, or of a class in Hugging Face's `_no_split_modules`."""
    named = {name: module for name, module in model.named_modules() if module is not model}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ValueError(f"parallel.blocks: no module of the model is called {pattern}")
    if patterns:
        chosen = [module for name, module in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    else:
        lists = [getattr(module, "_no_split_modules", None) for module in model.modules()]
        classes = {str(name) for names in lists for name in names or ()}
        attributes = [getattr(module, "blocks", None) for module in model.modules()]
        containers = (nn.ModuleList, nn.Sequential, list, tuple)
        listed = {id(block) for blocks in attributes if isinstance(blocks, containers) for block in blocks}
        chosen = [module for module in named.values() if id(module) in listed or type(module).__name__ in classes]
    return [module for module in reversed(chosen) if not isinstance(module, nn.ModuleList | nn.ModuleDict)]
