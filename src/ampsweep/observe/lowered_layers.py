"""The layers whose values an operator in low precision makes or takes, in one step under autocast."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.observe.calls import Call, observe
from ampsweep.observe.ledger import tensors_in
from ampsweep.record.numerics import INPUT_LAYER


class LoweredLayers:
    """The result of `note_lowered_layers`, there once it is over."""

    outside: frozenset[str] = frozenset()
    """Names of modules that returned something, and of parameters, of which nothing was in the dtype or cast to it."""


@contextmanager
def note_lowered_layers(model: nn.Module, dtype: torch.dtype) -> Iterator[LoweredLayers]:
    """Note which layers compute in `dtype`, or are cast to it, in the forward pass inside, under autocast to it.

    What the model is called with is a layer of its own. All outputs stay in memory until the end, so that nothing else
    takes their place there.
    """
    noted = LoweredLayers()
    names = {module: name for name, module in model.named_modules()}
    returned: dict[str, list[Tensor]] = defaultdict(list)
    cast: set[int] = set()

    def on_call(call: Call, args: Sequence[Any], _: dict[str, Any], __: Any) -> None:
        if call.phase == "forward" and call.is_cast and call.outputs[0] == dtype:
            cast.add(_storage(args[0]))

    def on_input(module: nn.Module, args: Any) -> None:
        if module is model:
            returned[INPUT_LAYER].extend(tensors_in(args))

    def on_output(module: nn.Module, _: Any, output: Any) -> None:
        if module in names:
            returned[names[module]].extend(one.detach() for one in tensors_in(output))

    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(on_input).remove)
        hooks.callback(register_module_forward_hook(on_output).remove)
        hooks.enter_context(observe(model, on_call, places=False))
        yield noted
    outside = {
        name
        for name, tensors in returned.items()
        if all(one.dtype != dtype and _storage(one) not in cast for one in tensors)
    }
    outside |= {name for name, parameter in model.named_parameters() if _storage(parameter) not in cast}
    noted.outside = frozenset(outside)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
