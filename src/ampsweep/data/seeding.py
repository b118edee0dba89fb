"""Generators seeded by a key, and the shuffled order of a finite data set."""

import hashlib
import math
from fractions import Fraction
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsweep.data.base import WHOLE, Share

_TABLE_UP_TO: Final = 2**16
"""Longest order drawn as a table. Longer orders are computed item by item; short ones would look too regular so."""
_AT_ONCE: Final = 2**13  # items that are looked up together, unless a batch has more


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``: its values are the same for every device."""
    return torch.Generator().manual_seed(seed_of(*key))


def seed_of(*key: str | int) -> int:
    """A 32-bit seed, the most that a Mersenne Twister takes."""
    return int.from_bytes(_hashed(*key)[:4], "little")


def seeds_of(*key: str | int, first: int, number: int) -> list[int]:
    base = np.frombuffer(_hashed(*key)[:8], dtype="<u8")[0]
    positions = np.arange(first, first + number, dtype=np.uint64)
    seeds: list[int] = _below(np.uint64(2**32), base ^ (positions * np.uint64(0x9E3779B97F4A7C15))).tolist()
    return seeds


class Shuffle:
    """A new permutation of ``num_items`` in each epoch, concatenated and cut into batches.

    A batch may cross the end of an epoch. Memory and the time until the first batch do not grow with ``num_items``.
    """

    def __init__(self, num_items: int, batch_size: int, seed: int, share: Share = WHOLE) -> None:
        """Take the batches of a ``share``; raise a ``ValueError`` for a batch that is larger than the data."""
        if batch_size > num_items:
            raise ValueError(f"batch_size is {batch_size}, but there are only {num_items} training items")
        self.num_batches = share.num_batches(Fraction(num_items, batch_size))
        """Number of the share's batches in an epoch, maybe a fraction."""
        self._num_items, self._batch_size, self._seed, self._share = num_items, batch_size, seed, share
        # Few items are looked up for several epochs at once.
        self._batches_at_once = max(1, min(_AT_ONCE, 8 * num_items // share.world_size) // batch_size)
        self._part = -1
        self._items = torch.empty(0, dtype=torch.int64)
        self._table = -1, np.empty(0, dtype=np.int64)  # an epoch and its order, if it is drawn as a table

    def first(self, index: int) -> int:
        """The position of the first item of the share's micro-batch ``index`` in the order of all epochs."""
        return self._share.index(index) * self._batch_size

    def items(self, index: int) -> Tensor:
        """Items of the share's micro-batch ``index`` since the start of training: int64 (batch_size,) on the CPU."""
        part, within = divmod(index, self._batches_at_once)
        if part != self._part:  # kept only to save time: the order is a function of (seed, position)
            self._items = self._items_of(part)
            self._part = part
        return self._items[within * self._batch_size :][: self._batch_size]

    def _items_of(self, part: int) -> Tensor:
        first, step = self.first(part * self._batches_at_once), self.first(1) - self.first(0)
        begins = np.arange(first, first + self._batches_at_once * step, step)
        epochs, places = np.divmod((begins[:, None] + np.arange(self._batch_size)).ravel(), self._num_items)
        items = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            is_here = epochs == epoch
            items[is_here] = self._ordered(epoch, places[is_here])
        return torch.from_numpy(items)

    def _ordered(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._num_items > _TABLE_UP_TO:
            items = Permutation(self._num_items, "epoch", self._seed, epoch)(places.astype(np.uint64))
            return items.astype(np.int64)
        if self._table[0] != epoch:
            table = torch.randperm(self._num_items, generator=generator("epoch", self._seed, epoch)).numpy()
            self._table = epoch, table
        return self._table[1][places]


class Permutation:
    """A pseudorandom permutation of the numbers below ``num_items``, computed for each number independently.

    It is the generalized Feistel network of J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002:
    each of six rounds adds a keyed hash of one of a number's two digits to the other. A result beyond ``num_items`` is
    permuted again. Takes up to 2**62 items; with less than some thousand the order is poor.
    """

    def __init__(self, num_items: int, *key: str | int) -> None:
        assert 0 < num_items <= 2**62
        self._num_items = np.uint64(num_items)
        base = math.isqrt(num_items - 1) + 1
        self._bases = np.uint64(base), np.uint64(-(-num_items // base))
        self._keys = [np.frombuffer(_hashed(*key, "round", number)[:8], dtype="<u8")[0] for number in range(6)]

    def __call__(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The items at these places, uint64 in the shape of ``places``."""
        items = self._permuted(places)
        while (outside := items >= self._num_items).any():
            items[outside] = self._permuted(items[outside])
        return items

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base, other_base = self._bases
        other, digit = np.divmod(numbers, base)
        for key in self._keys:
            # The total modulo other_base: if it is smaller than other_base, the difference wraps around.
            total = other + _below(other_base, digit ^ key)
            other, digit = digit, np.minimum(total, total - other_base)
            base, other_base = other_base, base
        items: NDArray[np.uint64] = other * base + digit
        return items


def _below(limit: np.uint64, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash numbers to numbers below ``limit``, at most 2**32, by D. Stafford's variant 13 of MurmurHash3's finalizer
    (2011), as SplitMix64 does."""
    hashed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = ((hashed ^ (hashed >> np.uint64(31))) >> np.uint64(32)) * limit >> np.uint64(32)
    return found


def _hashed(*key: str | int) -> bytes:
    return hashlib.sha256(":".join(map(str, key)).encode()).digest()
