"""Bytes of tensors, counted operator by operator as they run."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ampsweep.tracing.feeding import StorageCounter
from ampsweep.tracing.ledger import Ledger, tensors_in


class MemoryLimitError(torch.OutOfMemoryError):
    """Raised by an operator that took more tensor memory than the limit leaves."""

    def __init__(self, requested_bytes: int, in_use_bytes: int, limit_bytes: int) -> None:
        """`requested_bytes` is what the operator took on top of `in_use_bytes`."""
        super().__init__(
            f"an operator took {requested_bytes} bytes on top of {in_use_bytes}, and memory is limited to {limit_bytes}"
        )
        self.requested_bytes, self.in_use_bytes = requested_bytes, in_use_bytes


class TensorBytes(StorageCounter):  # type: ignore[no-untyped-call]
    """Counts the storages that operators take and return on one device, below autograd and in backward too.

    Views share a storage and count once. With a limit, the operator that exceeds it has done its work when
    MemoryLimitError is raised.
    """

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        super().__init__(Ledger(device, keeps_history=False))
        self._limit_bytes = limit_bytes
        self.peak_bytes = 0
        """The most bytes alive at once."""
        self.made_bytes = 0
        """Bytes of all storages that operators made, however soon they were freed."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(t is not Tensor for t in types):
            return NotImplemented  # a tensor subclass takes over: its operators on plain tensors are seen instead
        if self.looks_away or self.is_view_of_host(func):
            return func(*args, **(kwargs or {}))
        inputs = [*tensors_in((args, kwargs))]
        self.hold_inputs(func, inputs)
        result = func(*args, **(kwargs or {}))
        before = self.ledger.live_bytes
        for tensor in tensors_in(result):
            if self.ledger.create(tensor, "other"):
                self.made_bytes += tensor.untyped_storage().nbytes()
        self.note_exchange(func, inputs, result)
        self._look_at_limit(before)
        return result

    def deliver(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors of a batch, which can be too much like those of an operator."""
        before = self.ledger.live_bytes
        super().deliver(tensors)
        self._look_at_limit(before)

    def _look_at_limit(self, before: int) -> None:
        taken = self.ledger.live_bytes - before
        if self._limit_bytes is not None and taken > 0 and before + taken > self._limit_bytes:
            raise MemoryLimitError(taken, before, self._limit_bytes)
        self.peak_bytes = max(self.peak_bytes, before + taken)
