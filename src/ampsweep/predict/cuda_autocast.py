"""CUDA's autocast on CPU tensors, with the casts that the installed torch's own kernels choose, on any machine.

Ours are registered in place of the CPU's, above autograd, so that the tensors saved for backward are CUDA's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Self, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.amp import autocast_mode

from ampsweep.nested_tensors import map_tensors
from ampsweep.observe.operators import without_modes

aten = torch.ops.aten

CAST_ONLY: Final = "_addmm_activation"
"""An operator that the CPU's autocast lowers and no training calls. `cast_only` in its place gives access to autocast's
cache of weights; torch has no function for that."""
_LEFT_ALONE: Final = torch.empty(0, dtype=torch.int64)  # for its other arguments: autocast casts no integers
_KERNELS_OF_CUDA: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
_BAN: Final = "unsafe to autocast"
_ADVICE: Final = {
    "binary_cross_entropy": "; use nn.BCEWithLogitsLoss (F.binary_cross_entropy_with_logits) on the input of the "
    "sigmoid, instead of nn.BCELoss on its output"
}
_OF_DEVICE: Final = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled")
"""Functions of torch whose first argument is the type of device; without it they mean CUDA."""
_cast_on: Final[Callable[..., Any]] = autocast_mode._cast
_set_dtype: Final = torch.set_autocast_dtype


class AutocastRefusalError(RuntimeError):
    """Raised by an operator that CUDA's autocast refuses; torch raises a RuntimeError."""


def cuda_autocast_kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Operators of `aten` that autocast casts on CUDA or the CPU, and for each a kernel that casts as CUDA's."""
    on_cuda, on_cpu = (_operators(key) for key in ("AutocastCUDA", "AutocastCPU"))
    for name in on_cuda:
        packet, _, overload = name.partition(".")
        yield name, partial(_call_as_on_cuda, getattr(getattr(aten, packet), overload or "default"))
    for name in on_cpu - on_cuda - {CAST_ONLY}:
        yield name, torch.library.fallthrough_kernel


def _operators(key: str) -> set[str]:
    """Operators of `aten` with a kernel for this dispatch key, without those of named tensors."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    names = {name.removeprefix("aten::") for name in registered if name.startswith("aten::")}
    return {name for name in names if "name" not in name.partition(".")[2].lower()}


def cast_only(tensor: Tensor, *rest: Any, **keywords: Any) -> Tensor:
    """The kernel for `CAST_ONLY` below autocast: returns the first argument, cast by autocast."""
    return tensor


def _call_as_on_cuda(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Let CUDA's kernel cast witnesses of the tensors, cast those alike, and call the operator that it calls."""
    _set_dtype("cuda", torch.get_autocast_dtype("cpu"))
    args, kwargs = map_tensors((args, kwargs), _Witness)
    try:
        with without_modes(), torch.inference_mode():  # without gradients composites come whole
            operator.redispatch(_KERNELS_OF_CUDA, *args, **kwargs)
    except _ReachedError as reached:
        call, args, kwargs = reached.args
    except RuntimeError as error:
        if _BAN not in str(error):
            raise
        name = operator.overloadpacket.__name__
        raise AutocastRefusalError(f"CUDA's autocast refuses {name}{_ADVICE.get(name, '')}") from error
    args, kwargs = map_tensors((args, kwargs), _cast_as)
    with torch.autocast("cpu", enabled=False):
        return call(*args, **kwargs)


class _ReachedError(Exception):
    """Has as arguments the operator that autocast's kernel calls, and its arguments and keywords."""


class _Witness(Tensor):
    """Stands for a tensor in a call of CUDA's autocast kernel, which every build of torch has: it has a dtype and can
    be cast; every other operator raises `_ReachedError`."""

    of: Tensor

    def __new__(cls, of: Tensor, dtype: torch.dtype | None = None) -> Self:
        device = torch.device("cuda")
        made: Self = Tensor._make_wrapper_subclass(cls, of.shape, dtype=dtype or of.dtype, device=device)
        made.of = of
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not aten.to.dtype:
            raise _ReachedError(func, args, kwargs or {})
        return cls(args[0].of, args[1])


def _cast_as(witness: Any) -> Tensor:
    """Cast the tensor as its witness was cast."""
    tensor: Tensor = witness.of
    if not tensor.requires_grad or witness.dtype != torch.get_autocast_dtype("cpu"):
        return tensor.to(witness.dtype)
    with torch.inference_mode(False):  # else `cast_only`, a kernel of autograd, is not called
        return cast(Tensor, aten._addmm_activation(tensor, _LEFT_ALONE, _LEFT_ALONE))


@contextmanager
def cuda_autocast_state() -> Iterator[None]:
    """Redirect the state of CUDA's autocast to that of the CPU, by which the operators of the fake device are cast.
    That covers contexts, `torch.amp.custom_fwd` and `custom_bwd`. Tensors of the fake device are on `cpu`. Without CUDA
    torch takes it to be available, for autocast alone."""
    default = torch.get_autocast_dtype("cuda")
    with ExitStack() as stack:
        before = torch.get_autocast_dtype("cpu")
        stack.callback(torch.set_autocast_dtype, "cpu", before)
        torch.set_autocast_dtype("cpu", default)
        stack.callback(_set_dtype, "cuda", default)
        for name in _OF_DEVICE:
            stack.enter_context(patch.object(torch, name, _on_cpu(getattr(torch, name))))
        stack.enter_context(patch.object(autocast_mode, "_cast", _casting_on_cpu))
        stack.enter_context(patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True))
        yield


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def on_cpu(*args: Any) -> Any:
        device_type, rest = (args[0], args[1:]) if args and isinstance(args[0], str) else ("cuda", args)
        return function("cpu" if device_type == "cuda" else device_type, *rest)

    return on_cpu


def _casting_on_cpu(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    return _cast_on(value, "cpu" if device_type == "cuda" else device_type, dtype)
