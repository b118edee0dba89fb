"""Batches of a user's datasets: read here or by workers, and on CUDA copied to the device ahead of their step."""

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ampsweep.data.base import WHOLE, Collate, Share, batch_to_device, map_batch, named_sets
from ampsweep.data.fingerprint import digest
from ampsweep.data.workers import Batches, Workers, require_sendable
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.host_memory import is_measuring

AHEAD_BYTES: Final = 2**12
"""Smallest item of batches that are copied ahead: PCIe copies smaller ones in less time than the host needs for a
stream and its events. The limit is on items, so that a training's memory is affine in its batch size."""


class BatchReader:
    """The batches of a source by index.

    Workers start with any batch but the first, so that a check of one batch starts none, and end with a batch that
    does not follow the last one.
    """

    def __init__(self, source: Batches, num_workers: int, prefetch_factor: int | None, device: torch.device) -> None:
        self._source, self._prefetch_factor, self._device = source, prefetch_factor, device
        self.num_workers = 0 if device.type == "meta" else num_workers  # none for a prediction
        self._workers: Workers | None = None
        self._next = -1

    def __call__(self, index: int) -> Any:
        follows = index == self._next
        self._next = index + 1
        if not follows:
            self._end_workers()
        if self._workers is None and self.num_workers and index > 0 and not is_measuring():
            self._source.close()
            self._workers = self._start(self._source, itertools.count(index), self.num_workers)
        if self._workers is None:
            return self._source[index]
        try:
            return self._workers.next()
        except BaseException:
            self.stop_workers()
            raise

    def one_pass(self, source: Batches, indices: Sequence[int]) -> Iterator[Any]:
        """Read batches of another source with as many workers."""
        if not self.num_workers or len(indices) < 2:
            yield from (source[index] for index in indices)
            return
        yield source[indices[0]]  # without workers, as the caller may read no further
        workers = self._start(source, indices[1:], min(self.num_workers, len(indices) - 1))
        try:
            for _ in indices[1:]:
                yield workers.next()
        finally:
            workers.close()

    def stop_workers(self) -> None:
        """End the workers and close the source; the next batches start them again."""
        self._end_workers()
        self._source.close()

    def _end_workers(self) -> None:
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.close()

    def _start(self, source: Batches, indices: Any, num_workers: int) -> Workers:
        factor, pins = self._prefetch_factor, self._device.type == "cuda"
        return Workers(source, indices, num_workers=num_workers, prefetch_factor=factor, pins=pins)


class CopiedAhead:
    """Moves the batches that `read` returns from the host to the device.

    A batch of large items is copied in a separate stream while the step computes on the batch before. Its memory is
    allocated in the step's stream, and the copy waits for earlier work there. With `record_stream` instead, the
    allocator would keep freed batches until the device is done, and the peak would depend on how far the host is ahead.
    """

    def __init__(self, read: Callable[[int], Any], batch_size: int, device: torch.device) -> None:
        self._read, self._batch_size, self._device = read, batch_size, device
        self._is_cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[int, Any, Any] | None = None  # index, batch and event of the pending copy

    def __call__(self, index: int) -> Any:
        ahead = self._ahead
        self.close()
        if ahead is not None and ahead[0] == index:
            batch = ahead[1]
        else:
            batch = batch_to_device(self._read(index), self._device)
        if self._is_cuda and copies_ahead(batch, self._batch_size):
            self._ahead = index + 1, *self._begin_copy(self._read(index + 1))
        return batch

    def close(self) -> None:
        if self._ahead is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ahead[2])
            self._ahead = None

    def _begin_copy(self, batch: Any) -> tuple[Any, Any]:
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
    """Return True if batches of this size are copied ahead."""
    return sum(tensor.nbytes for tensor in tensors_in(batch)) >= AHEAD_BYTES * batch_size


class ReadDataset(ABC):
    """Training data and a validation set, or several by name, of the user's own, read by workers and divided among
    ranks; ``collate`` makes batches of their items."""

    tokens_per_batch: int | None = None
    copies_ahead = True  # on CUDA the next batch of large items is on the device during a step: see ``CopiedAhead``

    def __init__(
        self,
        *,
        train: Any,
        val: Any,
        batch_size: int,
        seed: int,
        device: torch.device,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        collate: Collate = default_collate,
    ) -> None:
        """``prefetch_factor``: batches that each worker reads ahead; None is torch's default, 2.

        Raises a ``ValueError`` for an unsuitable or empty dataset, and for settings that do not fit together.
        """
        for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
            if type(value) is not int and (value is not None or name == "num_workers"):
                raise ValueError(f"{name} must be a whole number, got {value}")
        if prefetch_factor is not None and num_workers == 0:
            raise ValueError(f"prefetch_factor={prefetch_factor} needs workers, but num_workers is 0")
        self.batch_size, self._seed, self._device, self._collate = batch_size, seed, device, collate
        self._num_workers, self._prefetch_factor = num_workers, prefetch_factor
        self._train, self._val = train, named_sets(val)
        self.val_names = tuple(name for _, *names in self._val for name in names)
        datasets = {("train",): train, **self._val}
        digests = [self._digest(".".join(key), dataset) for key, dataset in datasets.items()]
        self.fingerprint = digest(*self.val_names, *digests)
        require_sendable(num_workers, *datasets.values(), collate)
        self._begin(WHOLE)

    def for_rank(self, share: Share) -> Self:
        other = copy.copy(self)
        other._begin(share)
        return other

    @property
    def num_workers(self) -> int:
        return self._reader.num_workers

    def train_batch(self, index: int) -> Any:
        return self._batches(index)

    def val_batches(self, *name: str) -> Iterator[Any]:
        return (batch for batch, _ in self.val_rounds(*name))

    @abstractmethod
    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        """See `ampsweep.data.base.Divisible`."""

    def stop_workers(self) -> None:
        self._batches.close()
        self._reader.stop_workers()

    def _begin(self, share: Share) -> None:
        """Start again with the first training batch of a share."""
        self._share = share
        self._reader = BatchReader(self._batches_of(share), self._num_workers, self._prefetch_factor, self._device)
        self._batches = CopiedAhead(self._reader, self.batch_size, self._device)

    def _val_key(self, *name: str) -> tuple[str, ...]:
        """The key in `_val` of the validation set of this name, or of the first."""
        return ("val", *name) if name else next(iter(self._val))

    @abstractmethod
    def _batches_of(self, share: Share) -> Batches:
        """The training batches of a share."""

    @abstractmethod
    def _digest(self, name: str, dataset: Any) -> str:
        """The digest of a dataset's class and some items; ValueError: it is empty or of another kind."""
