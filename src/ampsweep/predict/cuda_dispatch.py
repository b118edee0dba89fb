"""What CUDA's dispatch does otherwise than the CPU's, on CPU tensors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ampsweep.predict.cuda_attention import Attention
from ampsweep.predict.cuda_autocast import cuda_autocast_kernels
from ampsweep.predict.target import Target

aten = torch.ops.aten


@contextmanager
def cuda_dispatch(target: Target) -> Iterator[None]:
    """Within the context operators on CPU tensors are cast, and broken up, as on CUDA; sizes are right, values are not.

    The replaced operators are torch's own again afterwards. The context is the whole process's, as its operators are.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*other operators may also be overridden", UserWarning)  # which is the point
        for name, kernel in cuda_autocast_kernels():
            library.impl(name, kernel, "AutocastCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("rms_norm", _rms_norm, "AutogradCPU")
        library.impl("scaled_dot_product_attention", Attention(target.capability), "AutogradCPU")
    try:
        yield
    finally:
        del library  # which takes its kernels with it


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """CUDA keeps a mask of booleans, the CPU one in the dtype of the input (ATen/native/Dropout.cpp)."""
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    output: Tensor = aten.native_dropout(tensor, p, train)[0]
    return output


def _rms_norm(
    tensor: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """On CUDA a kernel that keeps one number a row; on the CPU several operators, each with its result."""
    output: Tensor = _RMSNorm.apply(tensor, len(normalized_shape), weight)  # type: ignore[no-untyped-call]
    return output


class _RMSNorm(torch.autograd.Function):
    """Sizes of `_fused_rms_norm`, which has no kernel for the CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, num_dims: int, weight: Tensor | None) -> Tensor:
        with torch.enable_grad():  # what is made here is saved: an activation
            output = torch.empty_like(tensor)
            rstd = tensor.new_empty(tensor.shape[: tensor.dim() - num_dims], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, rstd)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        tensor, weight, _ = ctx.saved_tensors
        return torch.empty_like(tensor), None, None if weight is None else torch.empty_like(weight)
