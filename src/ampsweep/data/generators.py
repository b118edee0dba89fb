"""Reading of data with random numbers that depend on a key alone, whichever generator an augmentation draws from.

The generators are torch's on the CPU, that of `random`, and NumPy's global one.
"""

import _random
import random
from collections.abc import Callable, Sequence
from ctypes import memmove, string_at
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from ampsweep.data.seeding import seed_of, seeds_of

Read = TypeVar("Read")
_HIDDEN: Final[Any] = random.random.__self__  # type: ignore[attr-defined]
"""The generator behind the functions of `random`."""
_ADDRESS: Final = id(_HIDDEN) + object.__basicsize__
"""Address of its own fields, behind an object's head, in CPython, the only Python that runs torch."""
_SIZE: Final = _random.Random.__basicsize__ - object.__basicsize__
_NUMPY_SIZE: Final = 4 * 625
"""A Mersenne Twister is 624 words and the position in them."""


class Marked(Protocol):
    """A generator as it was at a moment, the object's construction."""

    def has_moved(self) -> bool:
        """Tell whether something has drawn from it or seeded it since."""

    def restore(self) -> None:
        """Put it back as it was."""

    def seed(self, seed: int) -> None:
        """Seed it."""


class OfTorch:
    """torch's generator on the CPU; `torch.manual_seed` would seed the device's as well, which is the model's."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = torch.default_generator.get_state()

    def has_moved(self) -> bool:
        now, size = torch.default_generator.get_state(), self._state.nbytes
        return string_at(now.data_ptr(), size) != string_at(self._state.data_ptr(), size)

    def restore(self) -> None:
        torch.default_generator.set_state(self._state)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


class OfRandom:
    """The generator of `random`.

    Its bytes are compared where they lie: `random.getstate` takes 10 microseconds.
    """

    __slots__ = ("_normal", "_state")

    def __init__(self) -> None:
        self._state = string_at(_ADDRESS, _SIZE)
        self._normal = _HIDDEN.gauss_next

    def has_moved(self) -> bool:
        return string_at(_ADDRESS, _SIZE) != self._state or _HIDDEN.gauss_next != self._normal

    def restore(self) -> None:
        memmove(_ADDRESS, self._state, _SIZE)
        _HIDDEN.gauss_next = self._normal

    def seed(self, seed: int) -> None:
        random.seed(seed)


class OfNumPy:
    """NumPy's global generator.

    Its bytes are compared where they lie, too: `np.random.get_state` takes 40 microseconds. One of another kind than
    usual counts as moved.

    Args:
        whole: keep also a normal number that is left over for the next call; else that is gone where `restore` is
            needed.
    """

    __slots__ = ("_address", "_generator", "_state")

    def __init__(self, *, whole: bool) -> None:
        self._generator = get_bit_generator()
        is_usual = type(self._generator) is np.random.MT19937
        self._address = self._generator.ctypes.state_address if is_usual and not whole else 0
        """Address of the state; 0 where all is kept."""
        self._state: Any = string_at(self._address, _NUMPY_SIZE) if self._address else np.random.get_state(legacy=False)

    def has_moved(self) -> bool:
        return (
            self._address == 0
            or string_at(self._address, _NUMPY_SIZE) != self._state
            or get_bit_generator() is not self._generator
        )

    def restore(self) -> None:
        if not self.has_moved():
            return  # with what it has left over
        set_bit_generator(self._generator)  # without what a draw has left over
        if self._address == 0:
            np.random.set_state(self._state)
        else:
            memmove(self._address, self._state, _NUMPY_SIZE)

    def seed(self, seed: int) -> None:
        if type(get_bit_generator()) is not np.random.MT19937:  # the only kind that takes a seed
            set_bit_generator(np.random.MT19937(0))
        np.random.seed(seed)


def marked() -> tuple[Marked, ...]:
    """All generators as they are now, nothing left out."""
    return OfTorch(), OfRandom(), OfNumPy(whole=True)


_KINDS: Final = frozenset(range(3))
"""Numbers of the generators, in the order of `marked`."""
_NUMPY: Final = 2


class ItemReading:
    """Reads batches of items with the generators seeded for each item, so that it is the same one in any batch.

    Afterwards the generators are as they were: the model's own random numbers, as those of dropout, do not depend on
    who reads. What `collate` draws depends on the batch.

    To seed all of them takes 10 microseconds an item, and to save them 0.1 ms a batch, as long as a batch in memory
    takes to read. So a generator is only watched until something has drawn from it; the first batch that does is read a
    second time.

    Args:
        fetch: reads items by their numbers, into a list. What it returns instead of a list is one thing, and seeded by
            its first item.
        collate: makes a batch of what `fetch` returns.
    """

    def __init__(self, fetch: Callable[[list[int]], Any], collate: Callable[[Any], Any]) -> None:
        self._fetch, self._collate = fetch, collate
        self._by_items: frozenset[int] = frozenset()
        self._by_collate: frozenset[int] = frozenset()
        """The generators from which items were drawn, and from which `collate` has drawn."""
        self._has_items = True

    def __call__(self, items: list[int], key: Sequence[str | int], *, first: int, index: int) -> Any:
        """Read a batch.

        Args:
            key, first: seed items, the first of which is at position `first`.
            index: seeds `collate` together with the key.
        """
        known = self._by_items | self._by_collate
        before = OfTorch(), OfRandom(), OfNumPy(whole=_NUMPY in known)
        try:
            while True:
                fetched = self._fetched(before, items, key, first)
                if moved := self._moved(before, but=self._by_items):
                    self._by_items |= moved
                else:
                    known = self._by_items | self._by_collate
                    _seed(before, known, *key, index)
                    batch = self._collate(fetched)
                    if not (moved := self._moved(before, but=known)):
                        return batch
                    self._by_collate |= moved
                _restore(before)  # and read again, since `collate` may have changed the items
        finally:
            _restore(before)

    def _fetched(self, before: tuple[Marked, ...], items: list[int], key: Sequence[str | int], first: int) -> Any:
        if not self._by_items:
            fetched = self._fetch(items)
            self._has_items = isinstance(fetched, list)
            return fetched
        if not self._has_items:
            _seed(before, self._by_items, *key, "item", first)
            return self._fetch(items)
        found: list[Any] = []
        generators = [before[kind] for kind in self._by_items]
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            for generator in generators:
                generator.seed(seed)
            found += self._fetch([item])
        return found

    def _moved(self, before: tuple[Marked, ...], *, but: frozenset[int]) -> frozenset[int]:
        return frozenset(kind for kind in _KINDS - but if before[kind].has_moved())


def _seed(generators: tuple[Marked, ...], kinds: frozenset[int], *key: str | int) -> None:
    seed = seed_of(*key)
    for kind in kinds:
        generators[kind].seed(seed)


def _restore(generators: tuple[Marked, ...]) -> None:
    for generator in generators:
        generator.restore()


class OwnGenerators:
    """Generators of a reader's own, which take everybody's place while it is entered.

    They go on where they were: what is drawn depends on how they were seeded and on what was read since, and not on how
    much was read at once.
    """

    def __init__(self) -> None:
        self._own: tuple[Marked, ...] = ()
        self._seeded: tuple[Marked, ...] = ()
        """The generators as they were when they were seeded last."""
        self._others: tuple[Marked, ...] = ()
        self._is_kept = False

    def __enter__(self) -> Self:
        self._others, self._is_kept = marked(), False
        for generator in self._own:
            generator.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()
        for generator in self._others:
            generator.restore()

    def keep(self) -> None:
        """Note how they are; until the end of the entry they may be used for anything else."""
        if not self._is_kept:
            self._own, self._is_kept = marked(), True

    def seed(self, seed: int) -> None:
        """Seed all of them, while they are entered."""
        for generator in self._others:
            generator.seed(seed)

    def begin(self, seed: int) -> None:
        """Seed all of them, while they are entered, to go on from there."""
        self.seed(seed)
        self._seeded = OfTorch(), OfRandom(), OfNumPy(whole=False)

    def state(self) -> dict[str, Any] | None:
        """Their state, while they are entered, as plain values and a tensor; None: as they were begun."""
        if not any(generator.has_moved() for generator in self._seeded):
            return None
        of_numpy: Any = np.random.get_state(legacy=False)
        return {
            "torch": torch.default_generator.get_state(),
            "random": random.getstate(),
            "numpy": _plain(of_numpy),
        }

    def load_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        torch.default_generator.set_state(state["torch"])
        random.setstate(state["random"])
        np.random.set_state(state["numpy"])


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and return its result; afterwards they are as they were."""
    generators = OwnGenerators()
    with generators:
        generators.seed(seed_of(*key))
        return read()


def _plain(value: Any) -> Any:
    """The same in Python's own types."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
