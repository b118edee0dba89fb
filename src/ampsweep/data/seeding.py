"""Randomness of data that depends on a key alone: generators by key, and the order of a finite data set."""

import hashlib

import torch
from torch import Tensor


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``, so that similar keys, as (0, 1) and (1, 0), are unrelated.

    It is always on the CPU, so that the values are the same on every device.
    """
    hashed = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    # The CPU generator (a Mersenne Twister) takes 32 bits of its seed.
    return torch.Generator().manual_seed(int.from_bytes(hashed[:4], "little"))


class Shuffle:
    """A new permutation of ``num_items`` in each epoch, cut into full batches; the rest of an epoch is dropped."""

    def __init__(self, num_items: int, batch_size: int, seed: int) -> None:
        """Raise a ``ValueError`` for a batch that is larger than the data."""
        require_batch(batch_size, num_items)
        self.num_batches = num_items // batch_size
        self._num_items = num_items
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def items(self, index: int) -> Tensor:
        """Items of micro-batch ``index`` since the start of training: int64 (batch_size,) on the CPU."""
        epoch, position = divmod(index, self.num_batches)
        if epoch != self._epoch:  # kept only to save time: the order is a function of (seed, epoch)
            self._order = torch.randperm(self._num_items, generator=generator("epoch", self._seed, epoch))
            self._epoch = epoch
        return self._order[position * self._batch_size :][: self._batch_size]


def require_batch(batch_size: int, num_items: int) -> None:
    """Raise a ``ValueError`` for a training set that is smaller than one batch."""
    if batch_size > num_items:
        raise ValueError(f"batch_size is {batch_size}, but there are only {num_items} training items")
