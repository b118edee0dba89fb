"""The choice of linear layers that multiply in float8, and their conversion by torchao."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.precision.fp32_modules import find_modules
from ampsweep.records.sections import KeptLayer, WhyKept

ALIGNMENT: Final = 16
"""The float8 kernels (`torch._scaled_mm`) take sizes that are multiples of 16."""


def plan_layers(model: nn.Module, fp32_patterns: Sequence[str]) -> tuple[dict[str, nn.Linear], list[KeptLayer]]:
    """Choose the layers of `model` to convert, by name, and the other layers with weight matrices, each with a reason.

    As in torchao's documentation and torchtitan's configurations, the output layer is not converted, because its
    rounding enters the loss directly. It is the last `nn.Linear` defined, unless other blocks have a layer of its size
    at the same place (`blocks.0.projection`, `blocks.1.projection`), and any layer whose weight is an embedding's.

    Raises:
        ValueError: a pattern matches no module.
    """
    matched = [module for found in find_modules(model, fp32_patterns).values() for module in found]
    in_float32 = {inner for module in matched for inner in module.modules()}
    output = _output_layer(model)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    converted: dict[str, nn.Linear] = {}
    kept: list[KeptLayer] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
                kept.append(KeptLayer(name=name, kind=type(module).__name__, why="no_linear"))
            continue
        is_output = module is output or id(module.weight) in embeddings
        why = "fp32_modules" if module in in_float32 else "output" if is_output else _why_kept(module)
        if why is None:
            converted[name] = module
        else:
            kept.append(KeptLayer(name=name, kind=type(module).__name__, why=why))
    return converted, kept


def _why_kept(layer: nn.Linear) -> WhyKept | None:
    if type(layer) is not nn.Linear:
        return "subclass"
    if layer.in_features % ALIGNMENT or layer.out_features % ALIGNMENT:
        return "size"
    # A conversion makes a new module of the same parameters and would lose hooks; torch has no public list of them.
    hooks = any(value for key, value in vars(layer).items() if key.endswith("_hooks"))
    is_changed = hooks or "forward" in vars(layer) or not isinstance(layer.weight, nn.Parameter)
    return "changed" if is_changed else None


def _output_layer(model: nn.Module) -> nn.Linear | None:
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        return None
    places = Counter(_place(name, layer) for name, layer in linears)
    name, last = linears[-1]
    is_repeated = places[_place(name, last)] > 1 and bool(re.search("[^0-9.]", name))
    return None if is_repeated else last


def _place(name: str, layer: nn.Linear) -> tuple[str, int, int]:
    """The name without its numbers, and the sizes: equal for the same layer of several blocks."""
    return re.sub(r"\b\d+\b", "#", name), layer.in_features, layer.out_features


class Float8Layers:
    """The converted layers of a model; they multiply in float8 under autocast of `device_type`."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self.running: str | None = None
        """Name of the layer whose forward is running outside compiled code."""
        self.sizes: dict[str, tuple[int, int]] = {}
        self.kept: list[KeptLayer] = []

    def convert(self, model: nn.Module, patterns: Sequence[str], conversion: Callable[..., nn.Module]) -> None:
        """Convert the layers of `plan_layers` in place; parameters stay the same objects and keep their names."""
        layers, self.kept = plan_layers(model, patterns)
        chosen, before, self.sizes = {*layers.values()}, {*model.modules()}, {}
        conversion(model, lambda module, _: module in chosen)
        for name, module in model.named_modules():
            if module not in before and isinstance(module, nn.Linear):
                self.sizes[name] = module.in_features, module.out_features
                module.forward = _UnderAutocast(name, module, self)  # type: ignore[method-assign]


class _UnderAutocast:
    """The forward of a converted layer: in float8 under autocast, else as before the conversion.

    torchao's layer reads CUDA's autocast state on every device; so it gets its input in autocast's dtype, and autocast
    is off.
    """

    def __init__(self, name: str, layer: nn.Linear, layers: Float8Layers) -> None:
        self._name, self._layer, self._layers = name, layer, layers

    def __call__(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self._call(input)
        self._layers.running = self._name
        try:
            return self._call(input)
        finally:
            self._layers.running = None

    def _call(self, input: Tensor) -> Tensor:
        device_type = self._layers.device_type
        if not torch.is_autocast_enabled(device_type):
            return nn.Linear.forward(self._layer, input)
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return self._multiply(input.to(dtype))

    def _multiply(self, input: Tensor) -> Tensor:
        """Compute the layer for an input (..., features), with rows of zeros, which change no scale and no sum.

        The number of rows, over which the weight's gradient sums, has to be a multiple of `ALIGNMENT`, too.
        """
        forward: Callable[[nn.Linear, Tensor], Tensor] = type(self._layer).forward
        rows = input.shape[:-1].numel()
        if rows % ALIGNMENT == 0:
            return forward(self._layer, input)
        padded = F.pad(input.reshape(rows, -1), (0, 0, 0, -rows % ALIGNMENT))
        return forward(self._layer, padded)[:rows].reshape(*input.shape[:-1], -1)


def restore_layers(model: nn.Module) -> None:
    """Turn every converted layer of `model` back into an `nn.Linear` of the same parameters, in place."""
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if isinstance(vars(child).get("forward"), _UnderAutocast):
                old: Any = child
                layer = nn.Linear(old.in_features, old.out_features, bias=False, device="meta")
                layer.weight, layer.bias = old.weight, old.bias
                setattr(parent, name, layer.train(old.training))
