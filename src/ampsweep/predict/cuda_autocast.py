"""CUDA's autocast on CPU tensors: a kernel for each operator that CUDA and the CPU cast differently.

The kernels are registered in place of the CPU's, above autograd, so that the tensors saved for backward are CUDA's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.amp import autocast_mode

from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.operators import schema_of
from ampsweep.predict.autocast_dispatch import Cast, dispatched_casts, operator

aten = torch.ops.aten

Kernel = Callable[..., Any]

CAST_ONLY: Final = "_addmm_activation"
"""An operator that the CPU's autocast lowers and no training calls. `cast_only` in its place gives access to autocast's
cache of weights; torch has no function for that."""
_LEFT_TO_THE_CPU: Final = {CAST_ONLY, "mkldnn_rnn_layer"}
"""Operators of the CPU alone. The second is its recurrent layers, lowered as CUDA lowers its own."""
_ADVICE: Final = {
    "binary_cross_entropy": "; use nn.BCEWithLogitsLoss (F.binary_cross_entropy_with_logits) on the input of the "
    "sigmoid, instead of nn.BCELoss on its output"
}
_OF_DEVICE: Final = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled")
"""Functions of torch whose first argument is the type of device; without it they mean CUDA."""
_cast_on: Final[Callable[..., Any]] = autocast_mode._cast


class AutocastRefusalError(RuntimeError):
    """Raised by an operator that CUDA's autocast refuses; torch raises a RuntimeError."""


def cuda_autocast_kernels() -> Iterator[tuple[str, Kernel]]:
    """Operators of `aten` that the CPU casts differently, with a kernel for `AutocastCPU` that casts as CUDA does."""
    on_cuda, on_cpu = dispatched_casts("cuda"), dispatched_casts("cpu")
    for name in sorted({*on_cuda, *on_cpu} - _LEFT_TO_THE_CPU):
        cast = on_cuda.get(name)
        if cast != on_cpu.get(name):
            yield name, torch.library.fallthrough_kernel if cast is None else _kernel(name, cast)


def cast_only(tensor: Tensor, *rest: Any, **keywords: Any) -> Tensor:
    """The kernel for `CAST_ONLY` below autocast: returns the first argument, cast by autocast."""
    return tensor


def _kernel(name: str, cast: Cast) -> Kernel:
    match cast:
        case "lower":
            return _casting(name, lambda tensors: torch.get_autocast_dtype("cpu"))
        case "float32":
            return _casting(name, lambda tensors: torch.float32)
        case "widest":
            return _casting(name, _widest)
        case "float32_result":
            return _in_float32(name)
        case "float32_overload":
            return _norm
        case "refused":
            return _refusing(name)


def _casting(name: str, dtype_of: Callable[[list[Tensor]], torch.dtype]) -> Kernel:
    call = operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_of([tensor for tensor in tensors_in((args, kwargs)) if _is_eligible(tensor)])
        args, kwargs = map_tensors((args, kwargs), lambda tensor: _cast(tensor, dtype))
        with torch.autocast("cpu", enabled=False):
            return call(*args, **kwargs)

    return kernel


def _in_float32(name: str) -> Kernel:
    call = operator(name)
    (position,) = (number for number, argument in enumerate(schema_of(call).arguments) if argument.name == "dtype")

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_given = kwargs.get("dtype") is not None or (len(args) >= position and args[position - 1] is not None)
        with torch.autocast("cpu", enabled=False):
            if _is_eligible(tensor) and not is_given:
                return call(tensor, *args[: position - 1], **kwargs | {"dtype": torch.float32})
            return call(tensor, *args, **kwargs)

    return kernel


def _norm(tensor: Tensor, p: Any = 2, *dim_and_keepdim: Any) -> Any:
    # `norm.Scalar` and `norm.ScalarOpt_dim`, by the overloads with a dtype.
    dtype = torch.float32 if _is_eligible(tensor) else tensor.dtype
    with torch.autocast("cpu", enabled=False):
        if not dim_and_keepdim:
            return aten.norm.ScalarOpt_dtype(tensor, p, dtype=dtype)
        dim, *keepdim = dim_and_keepdim
        return aten.norm.ScalarOpt_dim_dtype(tensor, p, dim, bool(keepdim and keepdim[0]), dtype=dtype)


def _refusing(name: str) -> Kernel:
    sentence = f"CUDA's autocast refuses {name}{_ADVICE.get(name, '')}"

    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise AutocastRefusalError(sentence)

    return kernel


def _is_eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not _is_eligible(tensor) or tensor.dtype == dtype:
        return tensor
    if not _is_cached(tensor, dtype):
        return tensor.to(dtype)
    cached: Tensor = operator(CAST_ONLY)(tensor, tensor, tensor)
    return cached


def _is_cached(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Return True if autocast caches the cast of this tensor (`cached_cast`, ATen/autocast_mode.cpp)."""
    return (
        torch.is_autocast_cache_enabled()
        and dtype == torch.get_autocast_dtype("cpu")
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
    )


def _widest(tensors: list[Tensor]) -> torch.dtype:
    # As `prioritize` (ATen/autocast_mode.h); it also refuses other 16-bit dtypes unless a float32 tensor comes before.
    widest = lower = torch.get_autocast_dtype("cpu")
    for tensor in tensors:
        if torch.float32 in (widest, tensor.dtype):
            widest = torch.float32
        elif tensor.dtype != lower:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return widest


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
