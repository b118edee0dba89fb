"""CUDA's operators on fake CPU tensors, where CUDA casts, splits or implements them differently from the CPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor

from ampsweep.predict.cuda_attention import attend_as_cuda
from ampsweep.predict.cuda_autocast import CAST_ONLY, cast_only, cuda_autocast_kernels, cuda_autocast_state
from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten

_RECURRENT: Final = ("gru", "lstm", "rnn_relu", "rnn_tanh")


class RecurrentLayerError(Exception):
    """Raised by a recurrent layer, whose memory on CUDA depends on cuDNN."""


@contextmanager
def cuda_dispatch(targets: list[TargetDevice]) -> Iterator[None]:
    """Cast and split operators on CPU tensors as the first of these targets does, process-wide; sizes are right, values
    are not. Others on which an operator takes another kernel are removed from the list."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*other operators may also be overridden", UserWarning)
        for name, kernel in cuda_autocast_kernels():
            library.impl(name, kernel, "AutocastCPU")
        library.impl(CAST_ONLY, cast_only, "AutogradCPU")
        library.impl("softmax.int", partial(_softmax, aten._softmax), "AutogradCPU")
        library.impl("log_softmax.int", partial(_softmax, aten._log_softmax), "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("rms_norm", _rms_norm, "AutogradCPU")
        for name in _RECURRENT:
            for overload in ("input", "data"):
                library.impl(f"{name}.{overload}", _refuse_recurrent, "AutogradCPU")
        library.impl("scaled_dot_product_attention", partial(attend_as_cuda, targets), "AutogradCPU")
    try:
        with cuda_autocast_state():
            yield
    finally:
        del library  # and its kernels


def _refuse_recurrent(*_: Any, **__: Any) -> Any:
    raise RecurrentLayerError("a recurrent layer is predicted on a CPU only: on CUDA cuDNN decides what it keeps")


def _softmax(kernel: Any, tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    # The kernel itself converts float16 to float32; other inputs are cast first (ATen/native/SoftMax.cpp).
    casts_itself = tensor.dtype == torch.float16 and dtype == torch.float32
    return kernel(tensor if dtype is None or casts_itself else tensor.to(dtype), dim, casts_itself)


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    # CUDA saves a boolean mask, the CPU a mask of the input's dtype (ATen/native/Dropout.cpp).
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    return cast(Tensor, aten.native_dropout(tensor, p, train)[0])


def _rms_norm(
    tensor: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    # On CUDA a single kernel that saves one number a row, unless the weight has another dtype; on the CPU several
    # operators (ATen/native/layer_norm.cpp).
    if weight is not None and weight.dtype != tensor.dtype:
        return cast(Tensor, aten._fused_rms_norm(tensor, normalized_shape, weight, eps)[0])
    return cast(Tensor, _RMSNorm.apply(tensor, len(normalized_shape), weight))  # type: ignore[no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    """The sizes of `_fused_rms_norm`, and the bytes that it moves; the CPU has no such kernel."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, num_dims: int, weight: Tensor | None) -> Tensor:
        with torch.enable_grad():  # these results are saved: activations
            output = tensor.clone()
            rstd = tensor.new_empty(tensor.shape[: tensor.dim() - num_dims], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, rstd)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        tensor, weight, _ = ctx.saved_tensors
        return gradients[0] + tensor, None, None if weight is None else weight.clone()
