"""Random numbers that depend on a key alone while data is read, whichever generator an augmentation draws from.

The generators are torch's on the CPU, that of `random`, and NumPy's global one.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from ctypes import string_at
from typing import Any, Final, Self, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator
from torch import Tensor

from ampsweep.data.seeding import seed_of, seeds_of

Read = TypeVar("Read")
States = dict[str, Any]
"""The states of the generators by name, as plain values and a tensor."""

_NUM_WORDS: Final = 624
"""Words of a Mersenne Twister, which lie in memory before the position in them."""


class ItemReading:
    """Reads batches of items with the generators seeded for each item, so that it is the same one in any batch.

    Afterwards the generators are as they were: the model's own random numbers, as those of dropout, do not depend on
    who reads. What `collate` draws depends on the batch.

    To seed and save all of them can take as long as a small batch takes to read. So a generator is only watched until
    something has drawn from it; the first batch that does is read a second time.

    Args:
        fetch: reads items by their numbers, into a list.
        collate: makes a batch of them.
    """

    def __init__(self, fetch: Callable[[list[int]], list[Any]], collate: Callable[[list[Any]], Any]) -> None:
        self._fetch, self._collate = fetch, collate
        self._drawn_by_items: set[str] = set()
        self._drawn_by_collate: set[str] = set()

    def __call__(self, items: list[int], key: Sequence[str | int], *, first: int, index: int) -> Any:
        """Read a batch.

        Args:
            key, first: seed items, the first of which is at position `first`.
            index: seeds `collate` together with the key.
        """
        while True:
            known = self._drawn_by_items | self._drawn_by_collate
            watches = "numpy" not in known
            before, drawn = _states(watched_only=watches), known
            try:
                fetched = self._fetched(items, key, first)
                by_items = _moved(before, but=self._drawn_by_items, watched_only=watches)
                drawn = known | by_items
                _seed(drawn, seed_of(*key, index))
                batch = self._collate(fetched)
            finally:
                by_collate = _moved(before, but=drawn, watched_only=watches)
                _restore(before, drawn | by_collate)
            if not by_items and not by_collate:
                return batch
            self._drawn_by_items |= by_items
            self._drawn_by_collate |= by_collate

    def _fetched(self, items: list[int], key: Sequence[str | int], first: int) -> list[Any]:
        if not self._drawn_by_items:
            return self._fetch(items)
        found = []
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            _seed(self._drawn_by_items, seed)
            found += self._fetch([item])
        return found


class OwnGenerators:
    """Generators of a reader's own, which take the place of the process's while it is entered.

    They go on where they were: what is drawn depends on how they were seeded and on what was read since, and not on how
    much was read at once.
    """

    def __init__(self) -> None:
        self._own: States = {}
        self._others: States = {}
        self._is_kept = False

    def __enter__(self) -> Self:
        self._others, self._is_kept = _states(), False
        _restore(self._own, self._own)
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()
        _restore(self._others, self._others)

    def keep(self) -> None:
        """Note how they are; until the end of the entry they may be used for anything else."""
        if not self._is_kept:
            self._own, self._is_kept = _states(), True

    def seed(self, seed: int) -> None:
        """Seed all of them, while they are entered."""
        _seed(_SEED, seed)

    def states(self) -> States:
        """Their states, while they are entered."""
        return _states()

    def load_states(self, states: States) -> None:
        """Go on from there, while they are entered."""
        _restore(states, states)


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and return its result; afterwards they are as they were."""
    with OwnGenerators() as generators:
        generators.seed(seed_of(*key))
        return read()


def _states(*, watched_only: bool = False) -> States:
    """The states of all generators.

    Args:
        watched_only: take NumPy's as bytes of its memory: `np.random.get_state` takes 40 microseconds. What a draw of a
            normal number has left over for the next is then not part of it, and gone where it is restored.
    """
    numpy: Any
    if watched_only:
        numpy = string_at(get_bit_generator().ctypes.state_address, 4 * (_NUM_WORDS + 1))
    else:
        numpy = np.random.get_state()
        numpy = tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in numpy)
    return {"torch": torch.default_generator.get_state(), "random": random.getstate(), "numpy": numpy}


def _restore_numpy(state: Any) -> None:
    if isinstance(state, bytes):
        words = np.frombuffer(state, dtype=np.uint32)
        state = "MT19937", words[:_NUM_WORDS], words[_NUM_WORDS]
    np.random.set_state(state)


_SEED: Final[dict[str, Callable[[int], object]]] = {
    "torch": torch.default_generator.manual_seed,  # `torch.manual_seed` would seed the device's as well
    "random": random.seed,
    "numpy": np.random.seed,
}
_RESTORE: Final[dict[str, Callable[[Any], object]]] = {
    "torch": torch.default_generator.set_state,
    "random": random.setstate,
    "numpy": _restore_numpy,
}


def _seed(names: Iterable[str], seed: int) -> None:
    for name in names:
        _SEED[name](seed)


def _restore(states: States, names: Iterable[str]) -> None:
    for name in names:
        _RESTORE[name](states[name])


def _moved(before: States, *, but: set[str], watched_only: bool) -> set[str]:
    """The generators, but for some, that something has drawn from or seeded since."""
    if before.keys() <= but:
        return set()
    now = _states(watched_only=watched_only)
    return {name for name in before.keys() - but if not _equal(before[name], now[name])}


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
