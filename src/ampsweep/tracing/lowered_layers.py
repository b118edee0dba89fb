"""The layers whose values an operator in low precision makes or takes, in one step under autocast."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.record.numerics import INPUT_LAYER
from ampsweep.tracing.calls import Call, observe
from ampsweep.tracing.ledger import tensors_in


class LoweredLayers:
    """Notes in which layers a forward pass computes in `dtype`, or casts to it. Enter it by `note_lowered_layers`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._names = {module: name for name, module in model.named_modules()}
        self._parameters = {name: _storage(parameter) for name, parameter in model.named_parameters()}
        self._model = model
        self._returned: dict[str, list[Tensor]] = {}
        self._cast: set[int] = set()
        self.outside: frozenset[str] = frozenset()
        """Names of modules that returned something, and of parameters, of which nothing was in `dtype`."""

    def on_call(self, call: Call, args: Sequence[Any], _: dict[str, Any], __: Any) -> None:
        if call.phase == "forward" and call.is_cast and call.outputs[0] == self._dtype:
            self._cast.add(_storage(args[0]))

    def on_input(self, module: nn.Module, args: Any) -> None:
        """Note what the model itself is called with, which is a layer of its own."""
        if module is self._model:
            self._returned.setdefault(INPUT_LAYER, []).extend(tensors_in(args))

    def on_output(self, module: nn.Module, _: Any, output: Any) -> None:
        """Note the output of a module, which stays in memory, so that nothing else takes its place there."""
        if module in self._names:
            self._returned.setdefault(self._names[module], []).extend(one.detach() for one in tensors_in(output))

    def conclude(self) -> None:
        """Tell the layers apart, and let go of what they returned."""
        modules = {
            name
            for name, returned in self._returned.items()
            if all(one.dtype != self._dtype and _storage(one) not in self._cast for one in returned)
        }
        parameters = {name for name, storage in self._parameters.items() if storage not in self._cast}
        self.outside = frozenset(modules | parameters)
        self._returned.clear()


@contextmanager
def note_lowered_layers(model: nn.Module, dtype: torch.dtype) -> Iterator[LoweredLayers]:
    """Note which layers compute in `dtype` in the forward pass inside, under autocast to it; told when it is over."""
    noted = LoweredLayers(model, dtype)
    hooks = (register_module_forward_pre_hook(noted.on_input), register_module_forward_hook(noted.on_output))
    try:
        with observe(model, noted.on_call, places=False):
            yield noted
    finally:
        for hook in hooks:
            hook.remove()
        noted.conclude()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
