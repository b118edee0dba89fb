"""Batches on the device; on CUDA the next one is copied there while the step computes on this one."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.data.base import batch_to_device, map_batch
from ampsweep.tracing.ledger import tensors_in

AHEAD_BYTES: Final = 2**12
"""The least size of an item for batches to be copied ahead: smaller ones take PCIe no longer than the host takes for a
stream and its events. It is that of an item, so that the memory of a training is affine in its batch size."""


class CopiedAhead:
    """Batches that `read` returns on the host, moved to the device.

    A batch of large items is copied in a stream of its own while the step computes on the one before. Its memory is
    allocated in the step's own stream, whose earlier work the copy waits for. With `record_stream` instead, the
    allocator would keep freed batches until the device is done, and the peak would depend on how far the host is ahead.
    """

    def __init__(self, read: Callable[[int], Any], batch_size: int, device: torch.device) -> None:
        self._read, self._batch_size, self._device = read, batch_size, device
        self._is_cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[int, Any, Any] | None = None
        """Index, batch and event of the copy that is under way."""

    def __call__(self, index: int) -> Any:
        ahead = self._ahead
        self.close()
        if ahead is not None and ahead[0] == index:
            batch = ahead[1]
        else:
            batch = batch_to_device(self._read(index), self._device)
        if self._is_cuda and copies_ahead(batch, self._batch_size):
            self._ahead = index + 1, *self._begun(self._read(index + 1))
        return batch

    def close(self) -> None:
        if self._ahead is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ahead[2])
            self._ahead = None

    def _begun(self, batch: Any) -> tuple[Any, Any]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

        def copied(tensor: Tensor) -> Tensor:
            if tensor.device == self._device:
                return tensor
            there = torch.empty_like(tensor, device=self._device)
            source = tensor.pin_memory()
            with torch.cuda.stream(self._stream):
                there.copy_(source, non_blocking=True)
            return there

        moved = map_batch(batch, copied)
        return moved, self._stream.record_event()


def copies_ahead(batch: Any, batch_size: int) -> bool:
    """Return True if the batch after one like this is copied ahead."""
    return sum(tensor.nbytes for tensor in tensors_in(batch)) >= AHEAD_BYTES * batch_size
