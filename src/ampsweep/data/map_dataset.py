"""Any of torch's map-style datasets as training data."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from ampsweep.data.base import Collate, Share, batch_to_device
from ampsweep.data.batch_reader import ReadDataset
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.generators import read_items, seeded
from ampsweep.data.seeding import Shuffle

_NUM_SAMPLES = 8


class MapDataset(ReadDataset):
    """A pair of the user's own ``torch.utils.data.Dataset``; the arguments are those of `ReadDataset`.

    torch's CPU generator, ``random`` and NumPy's global generator are seeded from (seed, position in the order) while
    an item is read, and restored afterwards: augmentations are the same in every arm, after a resume, with any number
    of workers and in batches of any size. Random numbers in ``collate`` depend on (seed, batch). The fingerprint covers
    class names, lengths and eight evenly spaced items of each set.
    """

    def val_rounds(self, *name: str) -> Iterator[tuple[Any, bool]]:
        key = self._val_key(*name)
        val = ItemBatches(self._val[key], self.batch_size, self._collate, key)
        rounds = [*self._share.dealt(range(len(val)))]
        batches = self._reader.one_pass(val, [index for index, _ in rounds])
        for (_, counts), batch in zip(rounds, batches, strict=True):
            yield batch_to_device(batch, self._device), counts

    def _batches_of(self, share: Share) -> "ItemBatches":
        shuffle = Shuffle(len(self._train), self.batch_size, self._seed, share)
        self.num_train_batches = shuffle.num_batches
        return ItemBatches(self._train, self.batch_size, self._collate, ("train", self._seed), shuffle)

    def _digest(self, name: str, dataset: Any) -> str:
        kind, has_items = type(dataset), hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        if not has_items or not isinstance(dataset, Sized):
            raise ValueError(f"{name} must be a map-style dataset with a length and items, got {kind.__name__}")
        if (length := len(dataset)) == 0:
            raise ValueError(f"{name} is an empty dataset ({kind.__name__})")
        items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
        samples = [seeded(partial(self._sample, dataset, item), "fingerprint", item) for item in items]
        return digest(kind.__qualname__, str(length), *map(batch_digest, samples))

    def _sample(self, dataset: Any, item: int) -> Any:
        return self._collate(_fetched(dataset, [item]))


@dataclass(frozen=True)
class ItemBatches:
    """Micro-batches of a dataset's items by index, the same in this process and in any worker.

    Without a `shuffle` the items are in their own order, and the last batch may be smaller. `key` and an item's
    position in the order seed the generators while it is read.
    """

    dataset: Any
    batch_size: int
    collate: Collate
    key: tuple[str | int, ...]
    shuffle: Shuffle | None = None

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        if self.shuffle is not None:
            first, items = self.shuffle.first(index), self.shuffle.items(index)
            key_of_batch = first // self.batch_size
        else:
            first = key_of_batch = index * self.batch_size
            items = torch.arange(first, min(first + self.batch_size, len(self.dataset)))
        if (batch := self._indexed(items)) is not None:
            return batch
        fetch = partial(_fetched, self.dataset)
        return read_items(fetch, self.collate, items.tolist(), self.key, first=first, index=key_of_batch)

    def close(self) -> None:
        """Nothing is open between two batches."""

    def _indexed(self, items: Tensor) -> list[Tensor] | None:
        """Index the dataset's tensors; None where that is not what reading it and `default_collate` do."""
        dataset = self.dataset
        if type(dataset) is not TensorDataset or self.collate is not default_collate:  # a subclass may do anything
            return None
        if any(type(tensor) is not Tensor for tensor in dataset.tensors):
            return None
        return [tensor[items] for tensor in dataset.tensors]


def _fetched(dataset: Any, items: list[int]) -> list[Any]:
    """Read items, together if the dataset supports it, as torch's own loader does."""
    together = getattr(dataset, "__getitems__", None)
    return together(items) if together else [dataset[item] for item in items]
