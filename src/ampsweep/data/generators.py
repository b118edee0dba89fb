"""The generators that augmentations draw from, seeded by a key: torch's on the CPU, `random`'s and NumPy's global."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import numpy as np
import torch

from ampsweep.data.seeding import seed_of, seeds_of

Read = TypeVar("Read")
States = dict[str, Any]
"""The states of the generators by name."""


def read_items(
    fetch: Callable[[list[int]], list[Read]],
    collate: Callable[[list[Read]], Any],
    items: list[int],
    key: Sequence[str | int],
    *,
    first: int,
    index: int,
) -> Any:
    """Read a batch with all generators seeded for each item, so that it is the same one in any batch.

    `key` and their positions from `first` on seed the items, `key` and `index` seed `collate`. Afterwards the
    generators are as they were: the model's own random numbers, as those of dropout, do not depend on reading.
    """
    with _left_alone():
        fetched = []
        for item, seed in zip(items, seeds_of(*key, "item", first=first, number=len(items)), strict=True):
            seed_all(seed)
            fetched += fetch([item])
        seed_all(seed_of(*key, index))
        return collate(fetched)


class OwnGenerators:
    """Generators of a reader's own, which take the place of the process's while it is entered, and go on from there."""

    def __init__(self) -> None:
        self._own: States | None = None
        self._others: States = {}

    def __enter__(self) -> Self:
        self._others = states_of_all()
        if self._own is not None:
            restore_all(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        self._own = states_of_all()
        restore_all(self._others)


def seeded(read: Callable[[], Read], *key: str | int) -> Read:
    """Call `read` with all generators seeded by `key`, and return its result; afterwards they are as they were."""
    with _left_alone():
        seed_all(seed_of(*key))
        return read()


@contextmanager
def _left_alone() -> Iterator[None]:
    before = states_of_all()
    try:
        yield
    finally:
        restore_all(before)


def seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed the device's as well
    random.seed(seed)
    np.random.seed(seed)


def states_of_all() -> States:
    return {
        "torch": torch.default_generator.get_state(),
        "random": random.getstate(),
        "numpy": np.random.get_state(),
    }


def restore_all(states: States) -> None:
    torch.default_generator.set_state(states["torch"])
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])
