"""Optimizers on fake CPU tensors: with the numbers that they count in, and the implementation they choose on CUDA.

torch chooses for itself, by private functions that are asked about the parameters' device (torch/optim/optimizer.py,
torch 2.13): `foreach` where nobody says otherwise, and whether `capturable` can be.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_CHOICES: Final = ("_get_foreach_kernels_supported_devices", "_get_capturable_supported_devices")
_FILLED: Final[dict[Any, float]] = {torch.zeros: 0.0, torch.ones: 1.0}


@contextmanager
def fake_optimizers(*, on_cuda: bool) -> Iterator[None]:
    """Let optimizers be built, and take their steps, inside as they do on the CPU or on CUDA."""
    with ExitStack() as stack:
        if on_cuda:
            for name, module in [*sys.modules.items()]:
                for choice in _CHOICES if name.startswith("torch.optim.") else ():
                    if hasattr(module, choice):
                        stack.enter_context(patch.object(module, choice, _fake_cuda))
            _foreach_supported_types.append(FakeTensor)
            stack.callback(_foreach_supported_types.remove, FakeTensor)
        stack.enter_context(_Scalars(on_cuda=on_cuda))
        yield


def _fake_cuda(*_: Any, **__: Any) -> list[str]:
    return ["cpu"]


class _Scalars(TorchFunctionMode):
    """Numbers in tensors, such as an optimizer's count of steps, of which a fake tensor knows none.

    A fake tensor keeps a number that it is made of, but not one that it is filled with. What is made on CUDA without
    the parameter's device lies on the host: it is a real tensor there, and so is what is computed of real ones alone.
    """

    def __init__(self, *, on_cuda: bool) -> None:
        super().__init__()
        self._on_cuda = on_cuda

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLED and kwargs.get("size", args[0] if len(args) == 1 else None) in ((), []):
            func, args = torch.tensor, (_FILLED[func],)
            kwargs = {key: value for key, value in kwargs.items() if key != "size"}
        if self._on_cuda and _is_on_host(func, args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _is_on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func is torch.tensor:  # a parameter's device is an object, and the host has a name
        return kwargs.get("device") in (None, "cpu") and not isinstance(kwargs.get("device"), torch.device)
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    return bool(tensors) and not any(isinstance(one, FakeTensor) for one in tensors)
