"""Conversion of batches to the dtype and memory layout that the model takes."""

from typing import Any

import torch
from torch import Tensor

from ampsweep.tracing.feeding import map_tensors


def as_model_input(batch: Any, dtype: torch.dtype, *, channels_last: bool) -> Any:
    """Convert a batch: floating-point tensors to `dtype` and, on request, images (N, C, H, W) to channels-last layout.

    Integer tensors (tokens, labels) stay as they are.
    """
    if type(batch) is tuple and not channels_last:  # the usual case, in every step: nothing would change
        for value in batch:
            if not isinstance(value, Tensor) or (value.dtype != dtype and value.is_floating_point()):
                break
        else:
            return batch

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        if channels_last and tensor.dim() == 4:
            return tensor.to(dtype, memory_format=torch.channels_last)
        return tensor if tensor.dtype == dtype else tensor.to(dtype)

    return map_tensors(batch, converted)
