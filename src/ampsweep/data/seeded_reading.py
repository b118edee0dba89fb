"""Reading of data with random numbers that depend on a key alone, whichever generator an augmentation draws from."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ampsweep.data.generators import Marked, OfNumPy, OfRandom, OfTorch, marked
from ampsweep.data.seeding import seed_of, seeds_of

Read = TypeVar("Read")

_KINDS = frozenset(range(3))
"""Numbers of the generators, in the order of `_marks`."""


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and return its result; afterwards they are as they were."""
    before, seed = marked(), seed_of(*key)
    try:
        for generator in before:
            generator.seed(seed)
        return read()
    finally:
        _restore(before)


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
        before = self._marks()
        try:
            if not (self._by_items or self._by_collate):
                fetched = self._fetch(items)
                self._has_items = isinstance(fetched, list)
                batch = self._collate(fetched)
                if not any(generator.has_moved() for generator in before):
                    before = ()
                    return batch
                del fetched, batch
                _restore(before)
            return self._seeded(before, items, key, first, index)
        finally:
            _restore(before)

    def _marks(self) -> tuple[Marked, ...]:
        return OfTorch(), OfRandom(), OfNumPy(whole=2 in self._by_items | self._by_collate)

    def _seeded(
        self, before: tuple[Marked, ...], items: list[int], key: Sequence[str | int], first: int, index: int
    ) -> Any:
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

    def _fetched(self, before: tuple[Marked, ...], items: list[int], key: Sequence[str | int], first: int) -> Any:
        if not self._by_items:
            return self._fetch(items)
        if not self._has_items:
            _seed(before, self._by_items, *key, "item", first)
            return self._fetch(items)
        fetched: list[Any] = []
        generators = [before[kind] for kind in self._by_items]
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            for generator in generators:
                generator.seed(seed)
            fetched += self._fetch([item])
        return fetched

    def _moved(self, before: tuple[Marked, ...], *, but: frozenset[int]) -> frozenset[int]:
        return frozenset(kind for kind in _KINDS - but if before[kind].has_moved())


def _seed(generators: tuple[Marked, ...], kinds: frozenset[int], *key: str | int) -> None:
    seed = seed_of(*key)
    for kind in kinds:
        generators[kind].seed(seed)


def _restore(generators: tuple[Marked, ...]) -> None:
    for generator in generators:
        generator.restore()
