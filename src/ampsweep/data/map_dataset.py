"""Any map-style dataset of torch as data of the suite."""

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from ampsweep.data.checks import require_batch, require_positive
from ampsweep.data.digest import digest, tensor_digest
from ampsweep.data.randomness import generator
from ampsweep.data.shuffle import Shuffle
from ampsweep.data.transfer import batch_to_device

_NUM_SAMPLES = 8


class MapDataset:
    """A user's own ``torch.utils.data.Dataset`` pair; batches are what ``default_collate`` makes of its items.

    Items are read in this process when their batch is asked for. While an item is read torch's CPU generator is seeded
    from (seed, batch) and afterwards restored, so that augmentations drawn from torch are the same in every arm and
    after a resume; those drawn from ``random`` or NumPy are not. The fingerprint covers class names, lengths and
    eight evenly spaced items of each set.
    """

    tokens_per_batch: int | None = None

    def __init__(
        self, *, train: Dataset[Any], val: Dataset[Any], batch_size: int, seed: int, device: torch.device
    ) -> None:
        """A dataset without length or items, an empty one, or a batch larger than ``train`` is a ``ValueError``."""
        require_positive(batch_size=batch_size)
        num_train, self._num_val = _length("train", train), _length("val", val)
        require_batch(batch_size, num_train)
        self.batch_size = batch_size
        self.fingerprint = digest(_fingerprint(train, num_train), _fingerprint(val, self._num_val))
        self._shuffle = Shuffle(num_train, batch_size, seed)
        self.num_train_batches = self._shuffle.num_batches
        self._train = train
        self._val = val
        self._seed = seed
        self._device = device

    def train_batch(self, index: int) -> Any:
        """The items of micro-batch ``index``, in a new order in each epoch."""
        items = self._shuffle.items(index).tolist()
        return batch_to_device(_collated(self._train, items, "train", self._seed, index), self._device)

    def val_batches(self) -> Iterator[Any]:
        """The validation items in their own order."""
        for first in range(0, self._num_val, self.batch_size):
            items = list(range(first, min(first + self.batch_size, self._num_val)))
            yield batch_to_device(_collated(self._val, items, "val", first), self._device)


def _length(name: str, dataset: Dataset[Any]) -> int:
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ValueError(f"{name} must be a map-style dataset with a length and items, got {type(dataset).__name__}")
    if len(dataset) == 0:
        raise ValueError(f"{name} is an empty dataset ({type(dataset).__name__})")
    return len(dataset)


def _collated(dataset: Dataset[Any], items: list[int], *key: str | int) -> Any:
    """The items as one batch on the CPU, read with torch's CPU generator seeded by ``key`` and then restored.

    Not torch.manual_seed: that would reseed the device, whose generator is the model's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator(*key).get_state())
        return default_collate([dataset[item] for item in items])


def _fingerprint(dataset: Dataset[Any], length: int) -> str:
    items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
    samples = [_collated(dataset, [item], "fingerprint", item) for item in items]
    return digest(type(dataset).__qualname__, str(length), *(_content(sample) for sample in samples))


def _content(batch: Any) -> str:
    """A digest of a collated batch, which holds tensors and strings only."""
    if isinstance(batch, Tensor):
        return tensor_digest(batch)
    if isinstance(batch, dict):
        return digest(*(part for key, value in batch.items() for part in (repr(key), _content(value))))
    if isinstance(batch, (list, tuple)):
        return digest(*(_content(value) for value in batch))
    return digest(repr(batch))
