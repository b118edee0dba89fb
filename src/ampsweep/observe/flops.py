"""Floating-point operations (FLOPs) of matrix multiplications, convolutions and attention: formulas, and a census."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ampsweep.numeric_formats import dtype_name

Formula = Callable[..., int]  # maps an operator's arguments, and its result as `out_val`, to a number of operations

aten = torch.ops.aten

_KERNELS: Final = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
ATTENTION: Final = [getattr(aten, f"_scaled_dot_product_{kernel}") for kernel in _KERNELS]
ATTENTION_BACKWARD: Final = [getattr(aten, f"_scaled_dot_product_{kernel}_backward") for kernel in _KERNELS]
CONVOLUTIONS: Final = (aten.convolution, aten.convolution_backward)


def formulas() -> Mapping[Any, Formula]:
    """The formulas by operator: those of torch.utils.flop_counter, with corrections. A multiplication and an addition
    are two operations; elementwise work is not counted, causal attention in full (Megatron-LM, arXiv:2104.04473)."""
    # torch's own formula of attention refuses fewer heads of keys than of queries (2.11).
    return {
        **FlopCounterMode(display=False).flop_registry,
        aten.mv: lambda matrix, *_, **__: 2 * matrix.numel(),
        aten.linear: lambda x, weight, *_, **__: 2 * x.numel() * weight.shape[0],  # an operator of its own on mps
        aten.linear_backward: lambda x, _, weight, mask, **__: 2 * x.numel() * weight.shape[0] * sum(mask[:2]),
        aten.convolution: _convolution,
        aten.convolution_backward: _convolution_backward,
        aten.mkldnn_rnn_layer: lambda x, w_x, w_h, *_, **__: _recurrent(x, (w_x, w_h)),
        aten.mkldnn_rnn_layer_backward: lambda x, w_x, w_h, *_, **__: 2 * _recurrent(x, (w_x, w_h)),
        aten._cudnn_rnn: lambda x, weights, *_, **__: _recurrent(x, weights),
        aten._cudnn_rnn_backward: lambda x, weights, *_, **__: 2 * _recurrent(x, weights),
        **dict.fromkeys(ATTENTION, lambda q, k, v, *_, **__: _scores(q, k) + _scored_values(q, k, v)),
        **dict.fromkeys(ATTENTION_BACKWARD, _attention_backward),
    }


def _recurrent(x: Tensor, weights: Sequence[Tensor]) -> int:
    # Each matrix multiplies a vector at every position of (time, batch), which packed sequences have as one dimension.
    return 2 * prod(x.shape[:-1]) * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _scores(query: Tensor, key: Tensor) -> int:
    # (batch, heads, length, size) times (batch, heads, length of the keys, size); heads of queries may share keys
    return 2 * query.numel() * key.shape[-2]


def _scored_values(query: Tensor, key: Tensor, value: Tensor) -> int:
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]


def _attention_backward(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    # Fused attention stores no scores: they are computed again (Dao et al., FlashAttention, arXiv:2205.14135, algorithm
    # 4), then the gradients of queries and keys, and those of values and scores.
    return 3 * _scores(query, key) + 2 * _scored_values(query, key, value)


def _convolution(x: Tensor, weight: Tensor, *rest: Any, out_val: Tensor, **__: Any) -> int:
    is_transposed = rest[4]
    return _convolve(x if is_transposed else out_val, weight)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, out_val: Any, **__: Any) -> int:
    # Each gradient costs as much as forward; torch's formula ignores that groups divide the weight's gradient.
    is_transposed: bool = rest[4]
    mask: list[bool] = rest[7]
    return _convolve(x if is_transposed else grad, weight) * sum(mask[:2])


def _convolve(positions: Tensor, weight: Tensor) -> int:
    # Every weight is used once at every position (N, _, *spatial).
    return 2 * positions.shape[0] * prod(positions.shape[2:]) * weight.numel()


@dataclass
class Operations:
    """The arithmetic of a step by the dtype of its operands: of matrix multiplications, convolutions and attention."""

    flops: Counter[str] = field(default_factory=Counter)  # all operations; the others are parts of them
    recomputed_flops: Counter[str] | None = field(default_factory=Counter)
    """By activation checkpointing and fused attention's backward; None for compiled checkpointing (unknown)."""
    forward_flops: Counter[str] = field(default_factory=Counter)  # outside backward
    region_flops: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """`forward_flops` by region of the model."""
    num_repeated: int = 0  # operators, counted here or not, that `torch.utils.checkpoint` called again in backward
    convolution_flops: Counter[str] | None = field(default_factory=Counter)  # part of `model_flops`; None: compiled
    outputs: Counter[str] = field(default_factory=Counter)  # new floating-point tensors that operators returned
    casts: Counter[str] = field(default_factory=Counter)  # those in another dtype than the first operand's
    region_casts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """`casts` outside backward, by region of the model."""

    @property
    def model_flops(self) -> dict[str, int]:
        """Operations without recomputation; empty if unknown."""
        again = self.recomputed_flops
        return {} if again is None else {dtype: count - again[dtype] for dtype, count in self.flops.items()}


class OperationCensus:
    def __init__(self) -> None:
        self._formulas = formulas()
        self.counts = Operations()

    def add(
        self,
        operator: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        dtype: torch.dtype | None,
        *,
        in_backward: bool,
        records: bool,
        region: str | None,
    ) -> None:
        """Count an operator (its packet of overloads) that has run, by the dtype of its first operand."""
        counts, is_repeated = self.counts, records and _is_checkpointed()
        counts.num_repeated += is_repeated
        if operator not in self._formulas or dtype is None:
            return
        assert counts.recomputed_flops is not None
        assert counts.convolution_flops is not None
        flops, name = self._formulas[operator](*args, **kwargs, out_val=result), dtype_name(dtype)
        counts.flops[name] += flops
        if is_repeated:
            counts.recomputed_flops[name] += flops
        elif operator in ATTENTION_BACKWARD:
            counts.recomputed_flops[name] += _scores(*args[1:3])
        if operator in CONVOLUTIONS and not is_repeated:
            counts.convolution_flops[name] += flops
        if not in_backward:
            if region is not None:
                counts.region_flops[region][name] += flops
            counts.forward_flops[name] += flops

    def add_output(self, dtype: torch.dtype, first: torch.dtype | None, region: str | None) -> None:
        """Count a new tensor, returned by an operator whose first operand has the dtype `first`."""
        self.counts.outputs[dtype_name(dtype)] += 1
        if first is not None and dtype != first:
            self.counts.casts[dtype_name(dtype)] += 1
            if region is not None:
                self.counts.region_casts[region][dtype_name(dtype)] += 1


def _is_checkpointed() -> bool:
    # Operators that autograd itself records in backward (for a gradient of a gradient) are not called from this file.
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None
