"""Attention on CUDA, on fake CPU tensors: torch's choice of a kernel, and what that saves for backward."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import contains
from typing import Any, Final, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten

Backend = Literal["cudnn", "flash", "efficient", "math"]

_HALF: Final = (torch.float16, torch.bfloat16)
_AMPERE: Final = (8, 0)
_HOPPER: Final = (9, 0)
_BLACKWELL: Final = 10
_PREFER_CUDNN: Final = (9, _BLACKWELL)  # major compute capabilities
_HEAD_ALIGNMENT, _BIAS_ALIGNMENT = 8, 16
_MAX_HEAD, _MAX_CUDNN_HEAD = 256, 128
_UNEQUAL_CUDNN_HEADS: Final = (192, 128)  # wider heads of query and value that cuDNN always supports
_SIXTEENTHS, _SINCE_2_14, _ROWS_AGAIN = (2, 12), (2, 14), (2, 15)
"""Since these versions of torch:
2.12: cuDNN supports only dropout in sixteenths.
2.14: the efficient kernel supports fewer heads of keys than of queries, but no unaligned tensors; all support a single
      head of keys without `enable_gqa`, and tensors without a batch; cuDNN supports wide heads on Blackwell, too, but
      only those of its backward pass, and no query of length 1 there.
2.15: cuDNN supports that query again."""


def attend_as_cuda(
    targets: list[TargetDevice],
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
    """`torch.nn.functional.scaled_dot_product_attention` on the first of these targets; RuntimeError if no enabled
    kernel supports the inputs. Others that take another kernel are removed from the list."""
    target = targets[0]
    if query.dim() == key.dim() == value.dim() == 3 and target.torch_version >= _SINCE_2_14:
        mask = attn_mask[None] if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        whole = (query[None], key[None], value[None])
        how = (dropout_p, is_causal)
        return attend_as_cuda(targets, *whole, mask, *how, scale=scale, enable_gqa=enable_gqa).squeeze(0)
    inputs, how = (query, key, value), (dropout_p, is_causal)
    call = AttentionCall(*inputs, attn_mask, *how, enable_gqa, target)
    backend = call.backend()
    targets[:] = [other for other in targets if replace(call, target=other).backend() == backend]
    if backend is None:
        raise RuntimeError("No available kernel. Aborting execution.")  # as torch says it
    bias = _additive(attn_mask, query.dtype)
    if backend == "math":
        attend = aten._scaled_dot_product_attention_math
        return cast(Tensor, attend(*inputs, bias, *how, None, scale=scale, enable_gqa=enable_gqa)[0])
    if backend == "efficient":
        if bias is not None:
            bias = _aligned(bias).expand(*query.shape[:2], query.shape[-2], key.shape[-2])
        attend = aten._scaled_dot_product_efficient_attention
        return cast(Tensor, attend(*inputs, bias, _keeps(*inputs), *how, scale=scale)[0])
    if bias is None and query.shape[-1] == value.shape[-1]:  # flash, or cuDNN with the same sizes
        return _flash(*inputs, *how, scale)
    attend = aten._scaled_dot_product_cudnn_attention
    return cast(Tensor, attend(*inputs, bias, _keeps(*inputs), *how, False, scale=scale)[0])


@dataclass(frozen=True)
class AttentionCall:
    """The inputs that decide on the kernel; tensors have shape (batch, heads, length, head). The conditions are those
    of ATen/native/transformers/cuda/sdp_utils.cpp, for dense tensors and CUDA 13."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout_p: float
    is_causal: bool
    enable_gqa: bool
    target: TargetDevice

    def backend(self) -> Backend | None:
        """The first of torch's enabled kernels that supports the inputs."""
        switches: Any = torch.backends.cuda
        takes: dict[Backend, Callable[[], bool]] = {
            "flash": lambda: switches.flash_sdp_enabled() and self._suits_flash(),
            "efficient": lambda: switches.mem_efficient_sdp_enabled() and self._suits_efficient(),
            "math": switches.math_sdp_enabled,
            "cudnn": lambda: switches.cudnn_sdp_enabled() and self._suits_cudnn(),
        }
        is_first = self.target.capability[0] in _PREFER_CUDNN
        for backend in sorted(takes, key=lambda backend: is_first and backend != "cudnn"):
            if takes[backend]():
                return backend
        return None

    def _suits_cudnn(self) -> bool:
        heads = self.query.shape[-1], self.value.shape[-1]
        version, is_newer = self.target.torch_version, self.target.capability > _HOPPER
        takes_rows = self.dropout_p == 0 and not (is_newer and _SINCE_2_14 <= version < _ROWS_AGAIN)
        is_warning = torch.is_deterministic_algorithms_warn_only_enabled()
        return (
            self.query.dtype in _HALF
            and self.target.capability >= _AMPERE
            and self._is_dense(takes_groups=True)
            and self._has_mask_for_cudnn()
            and all(head % _HEAD_ALIGNMENT == 0 for head in heads)
            and self._has_heads_for_cudnn(*heads)
            and self.key.shape[-2] > 1
            and (takes_rows or self.query.shape[-2] > 1)
            and (version < _SIXTEENTHS or (16 * self.dropout_p).is_integer())
            and (not torch.are_deterministic_algorithms_enabled() or is_warning)
        )

    def _suits_flash(self) -> bool:
        head = self.query.shape[-1]
        return (
            self.query.dtype in _HALF
            and self.target.capability >= _AMPERE
            and self._is_dense(takes_groups=True)
            and self.mask is None
            and head == self.value.shape[-1]
            and head <= _MAX_HEAD
            and not (self.is_causal and self.query.shape[-2] != self.key.shape[-2])
            and not (self._has_little_shared_memory() and (192 < head <= 224 or (head > 224 and self.dropout_p > 0)))
        )

    def _suits_efficient(self) -> bool:
        is_ampere = self.target.capability >= _AMPERE
        alignment = 8 if self.query.dtype in _HALF else 4 if is_ampere else 1
        is_checked = is_ampere and self.target.torch_version >= _SINCE_2_14
        return (
            (self.query.dtype in (torch.float16, torch.float32) or (self.query.dtype == torch.bfloat16 and is_ampere))
            and self._is_dense(takes_groups=self.target.torch_version >= _SINCE_2_14)
            and not (is_checked and any(tensor.storage_offset() % alignment for tensor in self._tensors))
            and self.query.shape[-1] % alignment == self.value.shape[-1] % alignment == 0
        )

    def _is_dense(self, *, takes_groups: bool) -> bool:
        return (
            all(t.dim() == 4 and t.stride(-1) == 1 and t.numel() > 0 for t in self._tensors)
            and (self.mask is None or self.mask.stride(-1) == 1)
            and len({(tensor.dtype, tensor.shape[0]) for tensor in self._tensors}) == 1
            and self.query.shape[-1] == self.key.shape[-1]
            and self._has_heads(*(tensor.shape[1] for tensor in self._tensors), takes_groups=takes_groups)
        )

    def _has_heads(self, queries: int, keys: int, values: int, *, takes_groups: bool) -> bool:
        is_implicit = keys == 1 and self.target.torch_version >= _SINCE_2_14
        if takes_groups and (self.enable_gqa or is_implicit):
            return keys == values and queries % keys == 0
        return queries == keys == values

    def _has_heads_for_cudnn(self, head: int, of_value: int) -> bool:
        capability, widest = self.target.capability, max(head, of_value)
        if widest <= _MAX_CUDNN_HEAD:
            return True
        if (capability != _HOPPER and capability[0] != _BLACKWELL) or widest > _MAX_HEAD:
            return False
        if (head, of_value) == _UNEQUAL_CUDNN_HEADS:
            return True
        if self.target.torch_version < _SINCE_2_14:
            return capability == _HOPPER
        return not _keeps(*self._tensors) or head == of_value == _MAX_HEAD

    def _has_mask_for_cudnn(self) -> bool:
        if self.mask is None:
            return True
        batch, heads, length = self.query.shape[:3]
        rows = {1, length}, {1, self.key.shape[-2]}
        sizes = {2: rows, 4: ({1, batch}, {1, heads}, *rows)}.get(self.mask.dim())
        return not self.mask.requires_grad and sizes is not None and all(map(contains, sizes, self.mask.shape))

    def _has_little_shared_memory(self) -> bool:
        # Flash's backward pass of wide heads does not fit into a multiprocessor's shared memory.
        capability = self.target.capability
        return _keeps(*self._tensors) and ((8, 6) <= capability <= (8, 9) or capability[0] == 12)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None) -> Tensor:
    # Heads are padded to a multiple of 8 (`pad_last_dim`, ATen/native/transformers/attention.cpp).
    head = query.shape[-1]
    missing = -head % _HEAD_ALIGNMENT
    if missing:
        query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
    scale = head**-0.5 if scale is None else scale
    attend = aten._scaled_dot_product_flash_attention
    output: Tensor = attend(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return output[..., :head] if missing else output


def _keeps(*tensors: Tensor) -> bool:
    # A backward pass needs the sums of the scores.
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as values to add to the scores: 0 or -inf for a boolean mask."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), -torch.inf, dtype=dtype))


def _aligned(bias: Tensor) -> Tensor:
    length = bias.shape[-1]
    return F.pad(bias, (0, -length % _BIAS_ALIGNMENT))[..., :length] if length % _BIAS_ALIGNMENT else bias  # pad_bias
