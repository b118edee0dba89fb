"""Moving a batch to the device without making the host wait."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; to CUDA from pinned memory, so that the copy runs beside the host."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on the device; mappings become dicts, sequences tuples; other values stay."""
    if isinstance(batch, Tensor):
        return to_device(batch, device)
    if isinstance(batch, Mapping):
        return {key: batch_to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(batch_to_device(value, device) for value in batch)
    return batch
