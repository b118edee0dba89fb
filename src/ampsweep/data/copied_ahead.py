"""Batches on the device; on CUDA the next one is copied there while the step computes on this one."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.data.base import batch_to_device, map_batch
from ampsweep.tracing.ledger import tensors_in

AHEAD_BYTES: Final = 2**12
"""Size of an item from which on batches are copied ahead. For a hundred such items PCIe takes some 20 microseconds, as
the host does for the stream and its events. The size of an item decides and not that of a batch, so that the memory of
a training is affine in its batch size."""


class CopiedAhead:
    """Batches that `read` returns on the host, moved to the device.

    A batch of large items is copied in a stream of its own while the step computes on the one before. The memory for it
    is taken in the step's own stream, whose earlier work the copy waits for: it needs no `record_stream`, with which
    the allocator keeps freed batches until the device is done, so that the peak depends on how far the host is ahead.
    """

    def __init__(self, read: Callable[[int], Any], batch_size: int, device: torch.device) -> None:
        self._read, self._batch_size, self._device = read, batch_size, device
        self._is_cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[int, Any, Any] | None = None
        """Index, batch and event of the copy that is under way."""

    def __call__(self, index: int) -> Any:
        if not self._is_cuda:
            return batch_to_device(self._read(index), self._device)
        batch = self._taken(index)
        if copies_ahead(batch, self._batch_size):
            self._ahead = index + 1, *self._begun(self._read(index + 1))
        return batch

    def close(self) -> None:
        if self._ahead is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ahead[2])
            self._ahead = None

    def _taken(self, index: int) -> Any:
        ahead = self._ahead
        if ahead is None or ahead[0] != index:
            self.close()
            return batch_to_device(self._read(index), self._device)
        self._ahead = None
        torch.cuda.current_stream(self._device).wait_event(ahead[2])
        return ahead[1]

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
    """Tell whether the batch after one like this is copied ahead."""
    return sum(tensor.nbytes for tensor in tensors_in(batch)) >= AHEAD_BYTES * batch_size
