"""CUDA's operators on fake CPU tensors: those that CUDA casts, splits or implements in another way than the CPU.

Attention has several kernels, and each saves other tensors for backward. The conditions under which CUDA picks one are
those of ATen/native/transformers/cuda/sdp_utils.cpp (torch 2.13), as far as a dense training meets them. On Hopper and
on Blackwell for data centers that file prefers cuDNN's kernel. Flash stands for it where both can attend, as it keeps
tensors of the same size; with a mask, which flash does not take, the kernel is cuDNN's own.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ampsweep.predict.cuda_autocast import CAST_ONLY, cast_only, cuda_autocast_kernels
from ampsweep.predict.cuda_autocast_state import cuda_autocast_state
from ampsweep.predict.cudnn_rnn import recurrent_kernels
from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten

Backend = Literal["cudnn", "flash", "efficient", "math"]

_HALF: Final = (torch.float16, torch.bfloat16)
_AMPERE: Final = (8, 0)
_FLASH_ALIGNMENT: Final = 8
_MAX_FLASH_HEAD: Final = 256
_PREFER_CUDNN: Final = (9, 10)
"""Major compute capabilities, with cuDNN after 9.15, as every release since 2.11 for CUDA 13 has it."""
_MAX_CUDNN_HEAD: Final = 128
_BIAS_ALIGNMENT: Final = 16


@contextmanager
def cuda_dispatch(target: TargetDevice) -> Iterator[None]:
    """Cast and split operators on CPU tensors inside as CUDA does; sizes are right, values are not.

    Afterwards the replaced operators are torch's own again. Operators belong to the process, and so does the context.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # torch warns of overriding, which is the purpose here.
        warnings.filterwarnings("ignore", ".*other operators may also be overridden", UserWarning)
        for name, kernel in cuda_autocast_kernels(target.torch_version):
            library.impl(name, kernel, "AutocastCPU")
        library.impl(CAST_ONLY, cast_only, "AutogradCPU")
        library.impl("softmax.int", partial(_softmax, aten._softmax), "AutogradCPU")
        library.impl("log_softmax.int", partial(_softmax, aten._log_softmax), "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("rms_norm", _rms_norm, "AutogradCPU")
        for name, kernel in recurrent_kernels():
            library.impl(name, kernel, "AutogradCPU")
        library.impl("scaled_dot_product_attention", CudaAttention(target.capability), "AutogradCPU")
    try:
        with cuda_autocast_state():
            yield
    finally:
        del library  # which removes its kernels


class CudaAttention:
    """`scaled_dot_product_attention` on a GPU of this compute capability."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attend as `torch.nn.functional.scaled_dot_product_attention` does."""
        output: Tensor
        match self.backend(query, key, value, attn_mask, is_causal=is_causal, dropout_p=dropout_p):
            case "cudnn":
                output = _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
            case "flash":
                output = _flash(query, key, value, dropout_p, is_causal, scale)
            case "efficient":
                output = _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
            case "math":
                output, _ = aten._scaled_dot_product_attention_math(
                    query, key, value, _additive(attn_mask, query.dtype), dropout_p, is_causal, None,
                    scale=scale, enable_gqa=enable_gqa,
                )  # fmt: skip
        return output

    def backend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        *,
        is_causal: bool,
        dropout_p: float = 0.0,
    ) -> Backend:
        """The first of torch's kernels that accepts these inputs and is not switched off (`torch.nn.attention`)."""
        switches: Any = torch.backends.cuda
        if attn_mask is not None and switches.cudnn_sdp_enabled() and self._can_cudnn(query, key, value, dropout_p):
            return "cudnn"
        if switches.flash_sdp_enabled() and attn_mask is None and self._can_flash(query, key, value, is_causal):
            return "flash"
        if switches.mem_efficient_sdp_enabled() and self._can_be_efficient(query, key, value):
            return "efficient"
        return "math"

    def _can_cudnn(self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> bool:
        head = query.shape[-1]
        return (
            self._capability[0] in _PREFER_CUDNN
            and _is_dense(query, key, value)
            and query.dtype in _HALF
            and head == key.shape[-1] == value.shape[-1]
            and head <= _MAX_CUDNN_HEAD
            and head % _FLASH_ALIGNMENT == 0
            and key.shape[-2] > 1
            and (16 * dropout_p).is_integer()
        )

    def _can_flash(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> bool:
        head = query.shape[-1]
        return (
            self._capability >= _AMPERE
            and _is_dense(query, key, value)
            and query.dtype in _HALF
            and head == key.shape[-1] == value.shape[-1]
            and head <= _MAX_FLASH_HEAD
            and not (is_causal and query.shape[-2] != key.shape[-2])
        )

    def _can_be_efficient(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        is_half = query.dtype in _HALF
        alignment = 4 if self._capability >= _AMPERE else 1
        if self._capability >= _AMPERE or (self._capability >= (7, 0) and is_half):
            alignment = max(alignment, 128 // (16 if is_half else 32))
        return (
            _is_dense(query, key, value)
            and query.dtype in (torch.float32, *_HALF)
            and (query.dtype != torch.bfloat16 or self._capability >= _AMPERE)
            and query.shape[-1] == key.shape[-1]
            and query.shape[-1] % alignment == value.shape[-1] % alignment == 0
        )


def _is_dense(*tensors: Tensor) -> bool:
    return all(tensor.dim() == 4 and tensor.stride(-1) == 1 and tensor.numel() > 0 for tensor in tensors)


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None) -> Any:
    """Flash attention; heads are padded to a multiple of 8 (`pad_last_dim`, ATen/native/transformers/attention.cpp)."""
    head = query.shape[-1]
    missing = -head % _FLASH_ALIGNMENT
    if missing:
        query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
    scale = head**-0.5 if scale is None else scale
    output = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return output[..., :head] if missing else output


def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Any:
    bias, keeps = _additive(mask, query.dtype), _keeps(query, key, value)
    return aten._scaled_dot_product_cudnn_attention(
        query, key, value, bias, keeps, dropout_p, is_causal, False, scale=scale
    )[0]


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Any:
    bias = _additive(mask, query.dtype)
    if bias is not None:
        bias = _aligned(bias).expand(*query.shape[:2], query.shape[-2], key.shape[-2])
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, _keeps(query, key, value), dropout_p, is_causal, scale=scale
    )[0]


def _keeps(*tensors: Tensor) -> bool:
    """Tell whether backward will need the sums of the scores."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as values to add to the scores: 0 or -inf for a boolean one."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), -torch.inf, dtype=dtype))


def _aligned(bias: Tensor) -> Tensor:
    """Pad the last dimension to a multiple of 16 in memory (`pad_bias`)."""
    length = bias.shape[-1]
    return F.pad(bias, (0, -length % _BIAS_ALIGNMENT))[..., :length] if length % _BIAS_ALIGNMENT else bias


def _softmax(kernel: Any, tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Softmax, or its logarithm, whose kernel takes float16 to float32 by itself; other inputs are cast first
    (ATen/native/SoftMax.cpp)."""
    casts_itself = tensor.dtype == torch.float16 and dtype == torch.float32
    return kernel(tensor if dtype is None or casts_itself else tensor.to(dtype), dim, casts_itself)


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps a boolean mask as on CUDA; the CPU's has the input's dtype (ATen/native/Dropout.cpp)."""
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    output: Tensor = aten.native_dropout(tensor, p, train)[0]
    return output


def _rms_norm(
    tensor: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """RMS norm as one kernel that keeps one number a row; the CPU runs several operators, each with its own result.

    CUDA does as the CPU where the weight has another dtype (ATen/native/layer_norm.cpp).
    """
    output: Tensor
    if weight is not None and weight.dtype != tensor.dtype:
        output = aten._fused_rms_norm(tensor, normalized_shape, weight, eps)[0]
    else:
        output = _RMSNorm.apply(tensor, len(normalized_shape), weight)  # type: ignore[no-untyped-call]
    return output


class _RMSNorm(torch.autograd.Function):
    """The sizes of `_fused_rms_norm`, which has no CPU kernel."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, num_dims: int, weight: Tensor | None) -> Tensor:
        with torch.enable_grad():  # these results are saved: activations
            output = torch.empty_like(tensor)
            rstd = tensor.new_empty(tensor.shape[: tensor.dim() - num_dims], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, rstd)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        tensor, weight, _ = ctx.saved_tensors
        return torch.empty_like(tensor), None, None if weight is None else torch.empty_like(weight)
