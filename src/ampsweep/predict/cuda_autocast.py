"""CUDA's autocast policy in place of the CPU's: the operators that cast their inputs, and to which dtype.

Taken from ATen/autocast_mode.h of torch 2.13; the table of https://docs.pytorch.org/docs/stable/amp.html lists part of
it. The casts are registered where the CPU's own are, above autograd, so that the tensors saved for backward are those
CUDA saves, inside composite operators too: CUDA has no rule for cross_entropy, but one for the log_softmax in it.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

aten = torch.ops.aten

Kernel = Callable[..., Any]

_FP32: Final = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
"""
_FP32_RESULT: Final = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_PROMOTED: Final = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_LOWER_THAN_ON_CPU: Final = "addmv addr mv chain_matmul linalg_multi_dot convolution"
_NOT_CAST: Final = """
cross_entropy_loss avg_pool3d max_pool3d adaptive_avg_pool3d max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d
replication_pad1d replication_pad2d replication_pad3d quantile quantile.scalar nanquantile nanquantile.scalar stft
stft.center trace
"""

FP32: Final = tuple(_FP32.split())
"""Inputs are cast to float32."""
FP32_RESULT: Final = tuple(_FP32_RESULT.split())
"""The result is requested in float32."""
PROMOTED: Final = tuple(_PROMOTED.split())
"""Inputs are cast to the widest of their dtypes."""
LOWER_THAN_ON_CPU: Final = tuple(_LOWER_THAN_ON_CPU.split())
"""Inputs are cast to autocast's dtype, unlike on the CPU."""
NOT_CAST: Final = tuple(_NOT_CAST.split())
"""Inputs are left as they are, where the CPU casts them to float32."""


def cuda_autocast_kernels() -> Iterator[tuple[str, Kernel]]:
    """Operators of `aten` by name, each with the kernel that autocast runs for it."""
    for name in FP32:
        yield name, _casting(name, lambda tensors: torch.float32)
    for name in FP32_RESULT:
        yield name, _softmax(name) if "softmax" in name else _in_float32(name)
    for name in PROMOTED:
        yield name, _casting(name, _widest)
    for name in LOWER_THAN_ON_CPU:
        yield name, _casting(name, lambda tensors: torch.get_autocast_dtype("cpu"))
    for name in NOT_CAST:
        yield name, torch.library.fallthrough_kernel


def operator(name: str) -> Any:
    """The operator with this name, given without `aten.`, as `pow.Tensor_Scalar`."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _casting(name: str, dtype_of: Callable[[list[Tensor]], torch.dtype]) -> Kernel:
    call = operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        eligible = [*_eligible(args), *_eligible(kwargs.values())]
        dtype = dtype_of(eligible) if eligible else torch.float32
        with torch.autocast("cpu", enabled=False):
            return call(*(_cast(a, dtype) for a in args), **{key: _cast(a, dtype) for key, a in kwargs.items()})

    return kernel


def _in_float32(name: str) -> Kernel:
    call = operator(name)

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            if tensor.is_floating_point() and tensor.dtype != torch.float64 and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float32
            return call(tensor, *args, **kwargs)

    return kernel


def _softmax(name: str) -> Kernel:
    """CUDA's kernels return float32 from float16 directly; other inputs are cast first (ATen/native/SoftMax.cpp)."""
    call, in_one = operator(name), operator(f"_{name.partition('.')[0]}")

    def kernel(tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with torch.autocast("cpu", enabled=False):
            if dtype is None and tensor.dtype == torch.float16:
                return in_one(tensor, dim, True)
            is_eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
            return call(tensor, dim, torch.float32 if dtype is None and is_eligible else dtype)

    return kernel


def _eligible(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            yield value
        elif isinstance(value, list | tuple):
            yield from _eligible(value)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value.to(dtype) if next(_eligible([value]), None) is not None else value


def _widest(tensors: list[Tensor]) -> torch.dtype:
    widest = torch.get_autocast_dtype("cpu")
    for tensor in tensors:
        if tensor.dtype == torch.float32:
            widest = torch.float32
    return widest
