"""The generators that augmentations draw from, seeded by a key: torch's on the CPU, `random`'s and NumPy's global."""

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
    reading. What `collate` draws depends on the batch. Seeding and saving can take as long as reading a small batch:
    a generator is only watched until something has drawn from it, and the first batch that does is read again.
    """

    def __init__(self, fetch: Callable[[list[int]], list[Any]], collate: Callable[[list[Any]], Any]) -> None:
        self._fetch, self._collate = fetch, collate
        self._drawn_by_items: set[str] = set()
        self._drawn_by_collate: set[str] = set()

    def __call__(self, items: list[int], key: Sequence[str | int], *, first: int, index: int) -> Any:
        """Read a batch: `key` and their positions from `first` on seed the items, `key` and `index` seed `collate`."""
        has_drawn = False
        while True:
            # To look between the two costs time, and is needed only to tell who has drawn.
            looks_between = has_drawn or not self._drawn_by_collate <= self._drawn_by_items
            known = self._drawn_by_items | self._drawn_by_collate
            watches = "numpy" not in known
            before, drawn, by_items = states_of_all(watched_only=watches), known, set[str]()
            try:
                fetched = self._fetched(items, key, first)
                if looks_between:
                    by_items = _moved(before, but=self._drawn_by_items, watched_only=watches)
                    drawn = known | by_items
                _seed(drawn, seed_of(*key, index))
                batch = self._collate(fetched)
            finally:
                by_collate = _moved(before, but=drawn, watched_only=watches)
                _restore(before, drawn | by_collate)
            if not by_items and not by_collate:
                return batch
            if looks_between:
                self._drawn_by_items |= by_items
                self._drawn_by_collate |= by_collate
            has_drawn = not looks_between

    def _fetched(self, items: list[int], key: Sequence[str | int], first: int) -> list[Any]:
        if not self._drawn_by_items:
            return self._fetch(items)
        found = []
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            _seed(self._drawn_by_items, seed)
            found += self._fetch([item])
        return found


class OwnGenerators:
    """Generators of a reader's own, which take the place of the process's while it is entered, and go on from there."""

    def __init__(self) -> None:
        self._own: States = {}
        self._others: States = {}
        self._is_kept = False

    def __enter__(self) -> Self:
        self._others, self._is_kept = states_of_all(), False
        restore_all(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()
        restore_all(self._others)

    def keep(self) -> None:
        """Save them; until the end of the entry they may be used for anything else."""
        if not self._is_kept:
            self._own, self._is_kept = states_of_all(), True


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and return its result; afterwards they are as they were."""
    with OwnGenerators():
        seed_all(seed_of(*key))
        return read()


def seed_all(seed: int) -> None:
    _seed(_SEED, seed)


def restore_all(states: States) -> None:
    _restore(states, states)


def states_of_all(*, watched_only: bool = False) -> States:
    """The states of all generators.

    With `watched_only` NumPy's are bytes of its memory, as `np.random.get_state` takes 40 microseconds; they lack the
    normal number that a draw may have left over for the next.
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
    now = states_of_all(watched_only=watched_only)
    return {name for name in before.keys() - but if not _equal(before[name], now[name])}


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
