"""Batches of a map-style dataset's items on the host, each a function of its index."""

from collections.abc import Sized
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ampsweep.data.base import Collate
from ampsweep.data.generators import ItemReading, seeded
from ampsweep.data.seeding import Shuffle


class ItemBatches:
    """Micro-batches of the items of a dataset, by index: the same in this process and in any worker.

    Args:
        shuffle: the order of the items; None: their own, in which the last batch may be smaller.
        key: seeds the random numbers that are drawn while an item is read, together with its position in the order.
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
        self._dataset, self._batch_size, self._collate = dataset, batch_size, collate
        self._shuffle, self._key = shuffle, key
        self._reading = ItemReading(partial(_fetched, dataset), collate)

    def __len__(self) -> int:
        """The number of batches in one pass in the items' own order."""
        return -(-length_of(self._dataset) // self._batch_size)

    def __getitem__(self, index: int) -> Any:
        """Read micro-batch `index`; any index, if the order is a shuffle, else one below the length."""
        if self._shuffle is not None:
            first, items = self._shuffle.first(index), self._shuffle.items(index)
            key_of_batch = first // self._batch_size
        else:
            first = key_of_batch = index * self._batch_size
            items = torch.arange(first, min(first + self._batch_size, length_of(self._dataset)))
        if (batch := self._indexed(items)) is not None:
            return batch
        return self._reading(items.tolist(), self._key, first=first, index=key_of_batch)

    def close(self) -> None:
        """Nothing is open between two batches."""

    def sample(self, item: int) -> Any:
        """Read one item as a batch, always the same whatever the seed."""
        return seeded(lambda: self._collate(_fetched(self._dataset, [item])), "fingerprint", item)

    def _indexed(self, items: Tensor) -> list[Tensor] | None:
        """Index the dataset's tensors; None where that is not what reading it and `default_collate` do."""
        if self._collate is not default_collate or (tensors := _in_memory(self._dataset)) is None:
            return None
        return [tensor[items] for tensor in tensors]


def length_of(dataset: Dataset[Any]) -> int:
    assert isinstance(dataset, Sized)
    return len(dataset)


def checked_length(name: str, dataset: Dataset[Any]) -> int:
    """The number of items of the dataset `name`.

    Raises:
        ValueError: it has no length or no items, or is empty.
    """
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ValueError(f"{name} must be a map-style dataset with a length and items, got {type(dataset).__name__}")
    if len(dataset) == 0:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
    return len(dataset)


def _in_memory(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """The tensors of a dataset of which reading is indexing; None for others, as a subclass, which may do anything."""
    if type(dataset) is TensorDataset and all(type(tensor) is Tensor for tensor in dataset.tensors):
        return dataset.tensors
    return None


def _fetched(dataset: Any, items: list[int]) -> list[Any]:
    """Read items, all at once where the dataset can, as torch's own loader does."""
    at_once = getattr(dataset, "__getitems__", None)
    return at_once(items) if at_once else [dataset[item] for item in items]
