"""Seeding of the generators that augmentations draw from: torch's on the CPU, `random`'s and NumPy's global."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import numpy as np
import torch

from ampsweep.data.seeding import seed_of, seeds_of

Read = TypeVar("Read")


def read_items(
    fetch: Callable[[list[int]], list[Read]],
    collate: Callable[[list[Read]], Any],
    items: list[int],
    key: Sequence[str | int],
    *,
    first: int,
    index: int,
) -> Any:
    """Read a batch with all generators seeded for each item, so that an item is the same in any batch.

    `key` and the positions from `first` on seed the items; `key` and `index` seed `collate`. Afterwards the generators
    are restored: the model's own random numbers, such as dropout's, do not depend on reading.
    """
    with restored():
        fetched = []
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            seed_all(seed)
            fetched += fetch([item])
        seed_all(seed_of(*key, index))
        return collate(fetched)


class OwnGenerators:
    """A reader's own generator states, swapped in while entered and saved on leaving."""

    def __init__(self) -> None:
        self._own: dict[str, Any] | None = None
        self._outside: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._outside = generator_states()
        if self._own is not None:
            restore_generators(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        self._own = generator_states()
        restore_generators(self._outside)


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and restore them afterwards."""
    with restored():
        seed_all(seed_of(*key))
        return read()


@contextmanager
def restored() -> Iterator[None]:
    """Restore the generators afterwards."""
    before = generator_states()
    try:
        yield
    finally:
        restore_generators(before)


def seed_all(seed: int) -> None:
    """Seed the generators; NumPy's takes 32 bits."""
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the device's as well
    random.seed(seed)
    np.random.seed(seed)


def generator_states() -> dict[str, Any]:
    of_torch = torch.default_generator.get_state()
    return {"torch": of_torch, "python": random.getstate(), "numpy": np.random.get_state()}


def restore_generators(states: dict[str, Any]) -> None:
    torch.default_generator.set_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
