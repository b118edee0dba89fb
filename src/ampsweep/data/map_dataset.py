"""Any of torch's map-style datasets as training data."""

from collections.abc import Iterator, Mapping, Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import WHOLE, Collate, Share, batch_to_device, named_sets
from ampsweep.data.batch_reader import BatchReader, CopiedAhead, ReadDataset, WorkerSettings
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.generators import read_items, seeded
from ampsweep.data.seeding import Shuffle
from ampsweep.data.training_step import made_for
from ampsweep.data.workers import require_sendable

_NUM_SAMPLES = 8


class MapDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.Dataset``; ``collate`` makes batches of their items.

    ``val`` may be several datasets by name.

    torch's CPU generator, ``random`` and NumPy's global generator are seeded from (seed, position in the order) while
    an item is read, and restored afterwards: augmentations are the same in every arm, after a resume, with any number
    of workers and in batches of any size. Random numbers in ``collate`` depend on (seed, batch). The fingerprint covers
    class names, lengths and eight evenly spaced items of each set.
    """

    def __init__(
        self,
        *,
        train: Dataset[Any],
        val: Dataset[Any] | Mapping[str, Dataset[Any]],
        batch_size: int,
        seed: int,
        device: torch.device,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        collate: Collate = default_collate,
    ) -> None:
        """Raise a ``ValueError`` for a dataset that is not map-style, empty or smaller than a batch."""
        require_positive(batch_size=batch_size)
        self._settings = WorkerSettings(num_workers, prefetch_factor)
        sets = named_sets(val)
        self.val_names = tuple(name for _, *names in sets for name in names)
        for key, dataset in {("train",): train, **sets}.items():
            _require_items(".".join(key), dataset)
        require_sendable(num_workers, train, *sets.values(), collate)
        self.batch_size = batch_size
        self._train: Any = train
        self._collate, self._seed, self._device = collate, seed, device
        self._val = {
            key: ItemBatches(dataset, batch_size=batch_size, collate=collate, shuffle=None, key=key)
            for key, dataset in sets.items()
        }
        self._begin(WHOLE)
        of_sets = (batches.fingerprint() for batches in self._val.values())
        self.fingerprint = digest(self._source.fingerprint(), *self.val_names, *of_sets)

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        val = self._val[("val", *name) if name else next(iter(self._val))]
        rounds = [*self._share.rounds(len(val))]
        batches = self._reader.one_pass(val, [index for index, _ in rounds])
        for (_, counts), batch in zip(rounds, batches, strict=True):
            yield batch_to_device(batch, self._device), counts

    def _begin(self, share: Share) -> None:
        shuffle = Shuffle(len(self._train), self.batch_size, self._seed, share)
        self._share, self.num_train_batches = share, shuffle.num_batches
        key, collate = ("train", self._seed), self._collate
        self._source = ItemBatches(self._train, batch_size=self.batch_size, collate=collate, shuffle=shuffle, key=key)
        self._reader = BatchReader(self._source, self._settings, self._device)
        self._batches = CopiedAhead(self._reader, self.batch_size, self._device)


class ItemBatches:
    """Micro-batches of a dataset's items by index, the same in this process and in any worker.

    Without a `shuffle` the items are in their own order, and the last batch may be smaller. `key` and an item's
    position in the order seed the generators while it is read.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        collate: Collate,
        shuffle: Shuffle | None,
        key: tuple[str | int, ...],
    ) -> None:
        self._dataset: Any = dataset
        self._batch_size, self._collate = batch_size, collate
        self._shuffle, self._key = shuffle, key
        self._fetch = partial(_fetched, dataset)

    def __len__(self) -> int:
        return -(-len(self._dataset) // self._batch_size)

    def __getitem__(self, index: int) -> Any:
        if self._shuffle is not None:
            first, items = self._shuffle.first(index), self._shuffle.items(index)
            key_of_batch = first // self._batch_size
        else:
            first = key_of_batch = index * self._batch_size
            items = torch.arange(first, min(first + self._batch_size, len(self._dataset)))
        if (batch := self._indexed(items)) is not None:
            return batch
        with made_for(None if self._shuffle is None else index):
            return read_items(self._fetch, self._collate, items.tolist(), self._key, first=first, index=key_of_batch)

    def close(self) -> None:
        """Nothing is open between two batches."""

    def fingerprint(self) -> str:
        """The digest of the dataset's class, its length and eight evenly spaced items, for any seed."""
        length = len(self._dataset)
        items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
        samples = [seeded(partial(self._read, [item]), "fingerprint", item) for item in items]
        return digest(type(self._dataset).__qualname__, str(length), *map(batch_digest, samples))

    def _read(self, items: list[int]) -> Any:
        return self._collate(_fetched(self._dataset, items))

    def _indexed(self, items: Tensor) -> list[Tensor] | None:
        """Index the dataset's tensors; None where that is not what reading it and `default_collate` do."""
        dataset = self._dataset
        if type(dataset) is not TensorDataset or self._collate is not default_collate:  # a subclass may do anything
            return None
        if any(type(tensor) is not Tensor for tensor in dataset.tensors):
            return None
        return [tensor[items] for tensor in dataset.tensors]


def _require_items(name: str, dataset: Dataset[Any]) -> None:
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ValueError(f"{name} must be a map-style dataset with a length and items, got {type(dataset).__name__}")
    if len(dataset) == 0:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")


def _fetched(dataset: Any, items: list[int]) -> list[Any]:
    """Read items, together if the dataset supports it, as torch's own loader does."""
    together = getattr(dataset, "__getitems__", None)
    return together(items) if together else [dataset[item] for item in items]
