"""Generators seeded by a key, and the shuffled order of a finite data set."""

import hashlib
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from ampsweep.data.base import WHOLE, Share


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``: its values are the same for every device."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: str | int) -> int:
    """A 32-bit seed, the most that a Mersenne Twister takes."""
    return int.from_bytes(_hashed(*key)[:4], "little")


def seeds_of(*key: str | int, first: int, number: int) -> list[int]:
    """32-bit seeds of `number` positions from `first` on, by D. Stafford's variant 13 of MurmurHash3's finalizer
    (2011), as in SplitMix64."""
    base = np.frombuffer(_hashed(*key)[:8], dtype="<u8")[0]
    numbers = base ^ (np.arange(first, first + number, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    hashed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    seeds: list[int] = ((hashed ^ (hashed >> np.uint64(31))) >> np.uint64(32)).tolist()
    return seeds


def held_out(num_items: int, val_fraction: float) -> tuple[Tensor, Tensor]:
    """The items to train on and those held out for validation, at least one, the same for every seed."""
    order = torch.randperm(num_items, generator=generator("split"))
    num_val = max(1, round(val_fraction * num_items))
    return order[num_val:], order[:num_val]


class Shuffle:
    """A new permutation of ``num_items`` in each epoch, concatenated and cut into batches, which may cross its end."""

    def __init__(self, num_items: int, batch_size: int, seed: int, share: Share = WHOLE) -> None:
        """Take the batches of a ``share``; raise a ``ValueError`` for a batch that is larger than the data."""
        if batch_size > num_items:
            raise ValueError(f"batch_size is {batch_size}, but there are only {num_items} training items")
        self.num_batches = share.num_batches(Fraction(num_items, batch_size))
        """Number of the share's batches in an epoch, maybe a fraction."""
        self._num_items, self._batch_size, self._seed, self._share = num_items, batch_size, seed, share
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def first(self, index: int) -> int:
        """The position of the first item of the share's micro-batch ``index`` in the order of all epochs."""
        return self._share.index(index) * self._batch_size

    def items(self, index: int) -> Tensor:
        """Items of the share's micro-batch ``index`` since the start of training: int64 (batch_size,) on the CPU."""
        epoch, place = divmod(self.first(index), self._num_items)
        items = self._order_of(epoch)[place : place + self._batch_size]
        missing = self._batch_size - len(items)
        return items if missing == 0 else torch.cat([items, self._order_of(epoch + 1)[:missing]])

    def _order_of(self, epoch: int) -> Tensor:
        if epoch != self._epoch:  # kept only to save time: the order is a function of (seed, epoch)
            self._order = torch.randperm(self._num_items, generator=generator("epoch", self._seed, epoch))
            self._epoch = epoch
        return self._order


def _hashed(*key: str | int) -> bytes:
    return hashlib.sha256(":".join(map(str, key)).encode()).digest()
