"""Where a device's kernels return something else than fake tensors say, which follow torch's decompositions."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.predict.target import Target

aten = torch.ops.aten

Correction = Callable[[Any, Sequence[Any]], Any]
"""From a result and the operator's arguments to the result as it is."""

_NORMS: Final = {aten.native_layer_norm: 2, aten.native_batch_norm: 1, aten.native_group_norm: 1}
"""With the place of the weight among their arguments."""
_LOSSES: Final = {aten.mse_loss: 2, aten.smooth_l1_loss: 2, aten.soft_margin_loss: 2}
"""With the place of the reduction."""
_LOSSES_OF_FULL_SIZE: Final = (1, 12)
"""The version of torch since which they are."""


def corrections(target: Target) -> dict[Any, Correction]:
    """By operator."""
    dtype_of = _on_cuda if target.kind == "cuda" else _on_cpu
    known = {norm: _statistics(dtype_of, place) for norm, place in _NORMS.items()}
    if target.torch_version >= _LOSSES_OF_FULL_SIZE:
        known |= {loss: _full_size(place) for loss, place in _LOSSES.items()}
    return known


def _full_size(place: int) -> Correction:
    """A mean or sum lies in memory as large as what it is of, which was resized (ATen/native/Loss.cpp)."""

    def correct(result: Tensor, args: Sequence[Any]) -> Tensor:
        if len(args) <= place or args[place] != 0:
            result.untyped_storage().resize_(args[0].numel() * result.element_size())
        return result

    return correct


def _statistics(dtype_of: Callable[[Tensor, Tensor | None], torch.dtype], place: int) -> Correction:
    """Mean and inverse deviation have another dtype than the output."""

    def correct(result: Any, args: Sequence[Any]) -> Any:
        output, *statistics = result
        dtype = dtype_of(args[0], args[place])
        return (output, *(each if each.dtype == dtype else each.to(dtype) for each in statistics))

    return correct


def _on_cpu(inputs: Tensor, weight: Tensor | None) -> torch.dtype:
    """That of the weight (ATen/native/cpu/mixed_data_type.h)."""
    return inputs.dtype if weight is None else weight.dtype


def _on_cuda(inputs: Tensor, weight: Tensor | None) -> torch.dtype:
    """That in which sums are taken (`acc_type`)."""
    return torch.promote_types(inputs.dtype, torch.float32)
