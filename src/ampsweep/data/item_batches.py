"""Batches of a map-style dataset's items on the host, each a function of its index."""

from collections.abc import Callable, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ampsweep.data.seeded_reading import SeededReading
from ampsweep.data.seeding import Shuffle

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of items, as `default_collate` does."""


class ItemBatches:
    """Micro-batches of the items of a dataset, by index: the same in this process and in any worker.

    Args:
        shuffle: the order of the items; None: their own, in which the last batch may be smaller.
        key: seeds the random numbers that are drawn while a batch is read, together with its index.
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
        self._shuffle, self._key, self._reading = shuffle, key, SeededReading()

    def __len__(self) -> int:
        """The number of batches in one pass."""
        if self._shuffle is not None:
            return self._shuffle.num_batches
        return -(-length_of(self._dataset) // self._batch_size)

    def __getitem__(self, index: int) -> Any:
        """Read micro-batch `index`; any index, if the order is a shuffle, else one below the length."""
        if self._shuffle is not None:
            return self._read(self._shuffle.items(index), *self._key, index)
        first = index * self._batch_size
        last = min(first + self._batch_size, length_of(self._dataset))
        return self._read(torch.arange(first, last), *self._key, first)

    def sample(self, item: int) -> Any:
        """Read one item as a batch, always the same whatever the seed."""
        return self._read(torch.tensor([item]), "fingerprint", item)

    def _read(self, items: Tensor, *key: str | int) -> Any:
        if (tensors := _in_memory(self._dataset)) is not None and self._collate is default_collate:
            return [tensor[items] for tensor in tensors]  # what default_collate makes of the items
        return self._reading(lambda: self._collate(_fetched(self._dataset, items.tolist())), *key)


def length_of(dataset: Dataset[Any]) -> int:
    """The number of items."""
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
