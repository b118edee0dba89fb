"""What CUDA's kernels take from torch's allocator for themselves while they run, where it is known and large."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten


def scratch_bytes(operator: Any, args: Sequence[Any], result: Any) -> int:
    """Bytes of an operator with these arguments; 0 where nothing is known."""
    formula = _FORMULAS.get(operator)
    return 0 if formula is None else formula(args)


def _flash_backward(args: Sequence[Any]) -> int:
    """`dq_accum` and `softmax_d` of `mha_bwd` (flash_attn/flash_api.cpp), both float32."""
    batch, heads, length, head = args[1].shape
    return int(4 * batch * heads * _up(length, 128) * (_up(head, 32 if head <= 128 else 64) + 1))


def _efficient_backward(args: Sequence[Any]) -> int:
    """float32: the product of output and its gradient, and its sums; half: an accumulator for the query's gradient
    (transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h)."""
    batch, heads, length, head = args[1].shape
    return int(4 * batch * heads * _up(length, 64) * (head + 1))


def _loss(args: Sequence[Any]) -> int:
    """The losses before their mean is taken, and the buffer and semaphores of the mean (native/cuda/Reduce.cuh)."""
    return int(args[0].numel() * args[0].element_size()) + 2 * 512


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_FORMULAS: Final[dict[Any, Callable[[Sequence[Any]], int]]] = {
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    aten.mse_loss: _loss,
    aten.smooth_l1_loss: _loss,
}
