"""Any of torch's map-style datasets as data of the suite."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Collate, Share, batch_to_device
from ampsweep.data.batch_reader import BatchReader, ReadDataset, WorkerSettings
from ampsweep.data.copied_ahead import CopiedAhead
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.item_batches import ItemBatches, checked_length
from ampsweep.data.seeding import Shuffle, require_batch

_NUM_SAMPLES = 8


class MapDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.Dataset``; ``collate`` makes batches of their items.

    Workers read ahead where that is faster than to read here. Either way torch's CPU generator, ``random`` and NumPy's
    global one are seeded from (seed, position in the order) while an item is read, and restored afterwards, so that
    augmentations drawn from them are the same in every arm, after a resume, with any number of workers and in batches
    of any size. What ``collate`` draws depends on (seed, batch). A generator that the dataset keeps for itself is its
    own affair. The fingerprint covers class names, lengths and eight evenly spaced items of each set.
    """

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
        self._settings = WorkerSettings(num_workers, prefetch_factor)
        num_train, num_val = checked_length("train", train), checked_length("val", val)
        require_batch(batch_size, num_train)
        self._settings.require_sendable(train, val, collate)
        self.batch_size = batch_size
        self._train, self._collate, self._num_train, self._seed = train, collate, num_train, seed
        self._device = device
        self._val = ItemBatches(val, batch_size=batch_size, collate=collate, shuffle=None, key=("val",))
        self._begin(WHOLE)
        self.fingerprint = digest(_fingerprint(train, num_train, self._source), _fingerprint(val, num_val, self._val))

    def val_rounds(self) -> Iterator[tuple[Any, bool]]:
        rounds = [*self._share.rounds(len(self._val))]
        batches = self._reader.one_pass(self._val, [index for index, _ in rounds])
        for (_, counts), batch in zip(rounds, batches, strict=True):
            yield batch_to_device(batch, self._device), counts

    def _begin(self, share: Share) -> None:
        shuffle = Shuffle(self._num_train, self.batch_size, self._seed, share)
        self._share, self.num_train_batches = share, shuffle.num_batches
        self._source = ItemBatches(
            self._train,
            batch_size=self.batch_size,
            collate=self._collate,
            shuffle=shuffle,
            key=("train", self._seed),
        )
        self._reader = BatchReader(self._source, self._settings, self._device)
        self._batches = CopiedAhead(self._reader, self.batch_size, self._device)


def _fingerprint(dataset: Dataset[Any], length: int, batches: ItemBatches) -> str:
    items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
    samples = [batches.sample(item) for item in items]
    return digest(type(dataset).__qualname__, str(length), *(batch_digest(sample) for sample in samples))
