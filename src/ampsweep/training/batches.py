"""Batches in the dtype and memory layout that the model takes."""

from typing import Any

import torch
from torch import Tensor


def as_model_input(batch: Any, dtype: torch.dtype, *, channels_last: bool) -> Any:
    """The batch with floating-point tensors in `dtype` and, on request, images (N, C, H, W) in channels-last layout.

    Tuples (named ones too), lists and dicts are walked through; integer tensors (tokens, labels) and other objects stay
    as they are.
    """
    if isinstance(batch, Tensor):
        if not batch.is_floating_point():
            return batch
        layout = torch.channels_last if channels_last and batch.dim() == 4 else torch.preserve_format
        return batch.to(dtype, memory_format=layout)
    if isinstance(batch, dict):
        return {key: as_model_input(value, dtype, channels_last=channels_last) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        values = [as_model_input(value, dtype, channels_last=channels_last) for value in batch]
        is_named = hasattr(batch, "_fields")
        return type(batch)(*values) if is_named else type(batch)(values)
    return batch
