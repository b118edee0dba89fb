"""The state of CUDA's autocast as the user's code sees and sets it, on a fake device of CPU tensors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.amp import autocast_mode

from ampsweep.precision.asked_autocast import was_asked

_OF_DEVICE: Final = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled")
"""Functions of torch that take the type of device first; without it the older ones mean CUDA."""


@contextmanager
def cuda_autocast_state() -> Iterator[None]:
    """Let everything inside that asks for CUDA's autocast, or changes it, have that of the CPU, in whose name the
    operators of the fake device are cast.

    So `torch.autocast("cuda", ...)` acts as a context or as a decorator, and so do `torch.amp.custom_fwd` and
    `custom_bwd`. Code that asks a tensor for its type of device is told `cpu`, which therefore means the fake device,
    too. Where CUDA itself is missing, torch is told that it is there, for autocast alone.
    """
    default = torch.get_autocast_dtype("cuda")
    with ExitStack() as stack:
        before = torch.get_autocast_dtype("cpu")
        stack.callback(torch.set_autocast_dtype, "cpu", before)
        torch.set_autocast_dtype("cpu", default)
        for name in _OF_DEVICE:
            stack.enter_context(_replaced(torch, name, _on_cpu(getattr(torch, name))))
        stack.enter_context(_replaced(autocast_mode, "_cast", _casting_on_cpu(autocast_mode._cast)))
        stack.enter_context(_replaced(torch.autocast, "__enter__", _entering(torch.autocast.__enter__)))
        stack.enter_context(_replaced(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(_replaced(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True))
        yield


@contextmanager
def _replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def on_cpu(*args: Any) -> Any:
        device_type, rest = (args[0], args[1:]) if args and isinstance(args[0], str) else ("cuda", args)
        return function("cpu" if device_type == "cuda" else device_type, *rest)

    return on_cpu


def _casting_on_cpu(cast: Callable[..., Any]) -> Callable[..., Any]:
    def cast_on_cpu(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return cast(value, "cpu" if device_type == "cuda" else device_type, dtype)

    return cast_on_cpu


def _entering(enter: Callable[..., Any]) -> Callable[..., Any]:
    def entered(autocast: torch.autocast) -> Any:
        """Enter as on a machine with CUDA."""
        enabled = autocast._enabled
        autocast._enabled = was_asked(autocast) if autocast.device == "cuda" else enabled
        try:
            return enter(autocast)
        finally:
            autocast._enabled = enabled

    return entered
