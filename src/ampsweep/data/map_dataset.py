"""Any of torch's map-style datasets as data of the suite."""

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import batch_to_device
from ampsweep.data.fingerprint import batch_digest, digest
from ampsweep.data.seeding import Shuffle, generator, require_batch

_NUM_SAMPLES = 8


class MapDataset:
    """A pair of the user's own ``torch.utils.data.Dataset``; ``default_collate`` makes batches of their items.

    Items are read in this process when their batch is requested. Meanwhile torch's CPU generator is seeded from (seed,
    batch), and restored afterwards, so that augmentations drawn from torch are the same in every arm and after a
    resume; those drawn from ``random`` or NumPy are not. The fingerprint covers class names, lengths and eight evenly
    spaced items of each set.
    """

    tokens_per_batch: int | None = None

    def __init__(
        self, *, train: Dataset[Any], val: Dataset[Any], batch_size: int, seed: int, device: torch.device
    ) -> None:
        """Take the two datasets and fingerprint them.

        Raises:
            ValueError: a dataset has no length or no items or is empty, or a batch is larger than ``train``.
        """
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
    """Read items as one batch on the CPU, with torch's CPU generator seeded by ``key`` and then restored.

    torch.manual_seed would also reseed the device, whose generator is the model's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator(*key).get_state())
        return default_collate([dataset[item] for item in items])


def _fingerprint(dataset: Dataset[Any], length: int) -> str:
    items = sorted({step * (length - 1) // (_NUM_SAMPLES - 1) for step in range(_NUM_SAMPLES)})
    samples = [_collated(dataset, [item], "fingerprint", item) for item in items]
    return digest(type(dataset).__qualname__, str(length), *(batch_digest(sample) for sample in samples))
