"""Any of torch's map-style datasets as data of the suite."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import torch
from torch.utils.data import Dataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Share, batch_to_device
from ampsweep.data.copied_ahead import CopiedAhead
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.item_batches import Collate, ItemBatches, checked_length
from ampsweep.data.seeding import Shuffle, require_batch
from ampsweep.data.worker_processes import why_not_sent
from ampsweep.data.workers import ReadTiming, Workers, WorkerSettings
from ampsweep.tracing.host_memory import is_measuring

_NUM_SAMPLES = 8
_NUM_TIMED: Final = 4
"""Batches that are timed before workers are chosen: the first two steps take longer, one of them is traced."""


class Source(Protocol):
    """Batches on the host that are functions of their index."""

    def __getitem__(self, index: int) -> Any: ...


class BatchReader:
    """The batches of a source by index.

    Workers begin with the second of two batches that follow each other, and end with a batch that does not follow: a
    check or a prediction, which reads one, starts none.
    """

    def __init__(self, source: Source, settings: WorkerSettings, device: torch.device) -> None:
        self._source, self._settings, self._device = source, settings, device
        # What is "read" to a device without values is a prediction's.
        self.num_workers: int | None = 0 if device.type == "meta" else settings.num_workers
        """Number of workers; None until it is chosen."""
        self._workers: Workers | None = None
        self._next = -1
        self._timing = ReadTiming()

    def __call__(self, index: int) -> Any:
        follows = index == self._next
        self._next = index + 1
        if self._workers is not None:
            if follows:
                return self._from_workers(self._workers)
            self.stop_workers()
        if self.num_workers is None:
            return self._timed(index, follows)
        if self.num_workers > 0 and follows and not is_measuring():
            self._workers = self._started(itertools.count(index), self.num_workers)
            return self._from_workers(self._workers)
        return self._source[index]

    def one_pass(self, source: Source, indices: Sequence[int]) -> Iterator[Any]:
        """Read these batches of another source, with as many workers as this one."""
        if not self.num_workers or len(indices) < 2:
            yield from (source[index] for index in indices)
            return
        yield source[indices[0]]  # as it may be the only one that is asked for
        workers = Workers(
            source,
            indices[1:],
            num_workers=min(self.num_workers, len(indices) - 1),
            prefetch_factor=self._settings.prefetch_factor,
            pins=self._pins,
        )
        try:
            for _ in indices[1:]:
                yield workers.next()
        finally:
            workers.close()

    def stop_workers(self) -> None:
        """End the workers; the next batches that follow each other start them again."""
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.close()

    @property
    def _pins(self) -> bool:
        return self._device.type == "cuda"

    def _from_workers(self, workers: Workers) -> Any:
        try:
            return workers.next()
        except BaseException:
            self.stop_workers()
            raise

    def _started(self, indices: Iterator[int], num_workers: int) -> Workers:
        factor = self._settings.prefetch_factor
        return Workers(self._source, indices, num_workers=num_workers, prefetch_factor=factor, pins=self._pins)

    def _timed(self, index: int, follows: bool) -> Any:
        if not follows:
            self._timing = ReadTiming()
        with self._timing.reading():
            batch = self._source[index]
        if len(self._timing) == _NUM_TIMED:
            num_workers = self._timing.num_workers(self._device)
            self.num_workers = num_workers if why_not_sent(self._source) is None else 0
        return batch


class MapDataset:
    """A pair of the user's own ``torch.utils.data.Dataset``; ``collate`` makes batches of their items.

    Workers read ahead where that is faster than to read here. Either way torch's CPU generator, ``random`` and NumPy's
    global one are seeded from (seed, position in the order) while an item is read, and restored afterwards, so that
    augmentations drawn from them are the same in every arm, after a resume, with any number of workers and in batches
    of any size. What ``collate`` draws depends on (seed, batch). A generator that the dataset keeps for itself is its
    own affair. The fingerprint covers class names, lengths and eight evenly spaced items of each set.
    """

    tokens_per_batch: int | None = None
    copies_ahead = True
    """On CUDA the batch after the current one is on the device, if its items are large: see ``CopiedAhead``."""

    def __init__(
        self,
        *,
        train: Dataset[Any],
        val: Dataset[Any],
        batch_size: int,
        seed: int,
        device: torch.device,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        collate: Collate = default_collate,
    ) -> None:
        """Take the two datasets and fingerprint them; see ``WorkerSettings`` for the workers.

        Raises:
            ValueError: a dataset has no length or no items or is empty, a batch is larger than ``train``, a setting of
                the workers is out of range, or what they need cannot be sent to them.
        """
        require_positive(batch_size=batch_size)
        settings = WorkerSettings(num_workers, prefetch_factor)
        num_train, num_val = checked_length("train", train), checked_length("val", val)
        require_batch(batch_size, num_train)
        if num_workers and (reason := why_not_sent(train, val, collate)) is not None:
            raise ValueError(f"num_workers={num_workers}: {reason}")
        self.batch_size = batch_size
        self._train, self._collate, self._num_train, self._seed = train, collate, num_train, seed
        self._settings, self._device = settings, device
        self._val = ItemBatches(val, batch_size=batch_size, collate=collate, shuffle=None, key=("val",))
        batches = self._begin(WHOLE)
        self.fingerprint = digest(_fingerprint(train, num_train, batches), _fingerprint(val, num_val, self._val))

    def for_rank(self, share: Share) -> "MapDataset":
        """The same data as a rank sees it, which reads its own batches only."""
        other = copy.copy(self)
        other._begin(share)
        return other

    @property
    def num_workers(self) -> int | None:
        """Number of workers that read training batches; None until it is chosen."""
        return self._reader.num_workers

    def train_batch(self, index: int) -> Any:
        """The items of micro-batch ``index``, in a new order in each epoch."""
        return self._batches(index)

    def val_batches(self) -> Iterator[Any]:
        for batch, _ in self.val_rounds():
            yield batch

    def val_rounds(self) -> Iterator[tuple[Any, bool]]:
        rounds = [*self._share.rounds(len(self._val))]
        batches = self._reader.one_pass(self._val, [index for index, _ in rounds])
        for (_, counts), batch in zip(rounds, batches, strict=True):
            yield batch_to_device(batch, self._device), counts

    def stop_workers(self) -> None:
        self._batches.close()
        self._reader.stop_workers()

    def _begin(self, share: Share) -> ItemBatches:
        """Be where no training batch of a share has been read."""
        shuffle = Shuffle(self._num_train, self.batch_size, self._seed, share)
        batches = ItemBatches(
            self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            shuffle=shuffle,
            key=("train", self._seed),
        )
        self._share, self.num_train_batches = share, shuffle.num_batches
        self._reader = BatchReader(batches, self._settings, self._device)
        self._batches = CopiedAhead(self._reader, self.batch_size, self._device)
        return batches


def _fingerprint(dataset: Dataset[Any], length: int, batches: ItemBatches) -> str:
    items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
    samples = [batches.sample(item) for item in items]
    return digest(type(dataset).__qualname__, str(length), *(batch_digest(sample) for sample in samples))
