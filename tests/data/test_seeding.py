"""Randomness of data: draws while reading depend on keys alone, and an epoch's order is a fixed permutation."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from ampsweep.data.base import WHOLE, Share
from ampsweep.data.generators import read_items, seeded
from ampsweep.data.seeding import Permutation, Shuffle

READERS = {
    "torch": lambda: torch.rand(3).tolist(),
    "random": lambda: [random.random(), random.gauss(0, 1)],
    "numpy": lambda: [*np.random.rand(3), np.random.randn()],
    "none": lambda: [1.0],
    "all": lambda: [number for name in ("torch", "random", "numpy") for number in READERS[name]()],
}
reads = pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())


def reading(read, collate=list):
    """A reading of items that each have what `read` draws."""
    return partial(read_items, lambda items: [(item, *read()) for item in items], collate)


def batches(reading, indices, size=4):
    found = {}
    for index in indices:
        items = list(range(index * size, (index + 1) * size))
        found[index] = reading(items, ("train", 0), first=items[0], index=index)
    return [found[index] for index in sorted(found)]


def next_numbers():
    """The numbers that a training would draw next, without drawing them."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    drawn = READERS["all"]() + READERS["all"]()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    return drawn


@reads
def test_items_are_the_same_in_any_batch(read):
    expected = batches(reading(read), range(4))
    READERS["all"]()
    assert batches(reading(read), (3, 1, 0, 2)) == expected
    items = [item for batch in expected for item in batch]
    assert [item for batch in batches(reading(read), range(8), 2) for item in batch] == items
    by_key = [seeded(read, "key", index) for index in range(3)]
    assert [seeded(read, "key", index) for index in (2, 1, 0)] == by_key[::-1]
    if read is not READERS["none"]:
        assert len({item[1:] for item in items}) == 16
        assert by_key[0] != by_key[1]


@reads
def test_the_trainings_own_numbers_do_not_depend_on_reading(read):
    np.random.seed(0)
    random.seed(0)
    before = next_numbers()
    of_items, of_collate = reading(read), reading(READERS["none"], lambda items: [*items, read()])
    batches(of_items, [0])
    assert next_numbers() == before, "the first draw is undone too"
    READERS["numpy"]()  # leaves a normal number over for the next call
    before = next_numbers()
    for index in range(3):
        batches(of_items, [index])
        batches(of_collate, [index])
        seeded(read, "key", index)
        assert next_numbers() == before


def test_each_item_is_seeded_whatever_the_others_draw():
    draws = [*READERS.values()]
    mixed = partial(read_items, lambda items: [draws[item % 5]() for item in items], list)
    alone = partial(read_items, lambda items: [READERS["all"]() for _ in items], list)
    found = [item for batch in batches(mixed, range(10), 4) for item in batch]
    assert found == [item for batch in batches(mixed, range(40), 1) for item in batch]
    drawn = [item for batch in batches(alone, range(10), 4) for item in batch]
    assert all(found[item] == drawn[item] for item in range(4, 40, 5))


@reads
def test_numbers_drawn_by_collate_depend_on_the_batch(read):
    def collate(items):
        return [items.pop(), read()]  # a changed list of items could not be collated again

    expected = batches(reading(READERS["random"], collate), range(3))
    assert batches(reading(READERS["random"], collate), (2, 0, 1)) == expected
    assert read is READERS["none"] or expected[0][1] != expected[1][1]


def test_an_error_leaves_the_generators_alone():
    def fails(items):
        READERS["all"]()
        raise RuntimeError

    before = next_numbers()
    with pytest.raises(RuntimeError):
        batches(partial(read_items, fails, list), [1])
    with pytest.raises(RuntimeError):
        seeded(partial(fails, []), "key")
    assert next_numbers() == before


LARGE = 200_003
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 1000, 65_536, 65_537, 65_539, 2**17, LARGE]
"""With squares, their neighbours and primes; above 65,536 items an order is computed."""


def epoch(num_items, *, batch_size=1, seed=0, number=0, share=WHOLE):
    """The share's items of an epoch."""
    shuffle = Shuffle(num_items, batch_size, seed, share)
    begin, end = number * num_items, (number + 1) * num_items
    own = range(begin // (batch_size * share.world_size), -(-end // (batch_size * share.world_size)))
    items = [
        shuffle.items(index)[max(0, begin - first) : end - first]
        for index in own
        if (first := shuffle.first(index)) < end
    ]
    return torch.cat(items).numpy()


@pytest.mark.parametrize("num_items", LENGTHS)
def test_each_epoch_has_each_item_once(num_items):
    items = Permutation(num_items, "a key")(np.arange(num_items, dtype=np.uint64))
    assert np.array_equal(np.sort(items), np.arange(num_items))
    for number in (0, 1, 3):
        items = epoch(num_items, batch_size=max(1, num_items // 4), number=number)
        assert np.array_equal(np.sort(items), np.arange(num_items))


@pytest.mark.parametrize("num_items", [1000, LARGE])
def test_the_order_does_not_depend_on_batch_size_or_access(num_items):
    for number in (0, 2):
        orders = [epoch(num_items, batch_size=size, number=number) for size in (7, 64, num_items // 3)]
        assert all(np.array_equal(orders[0], other) for other in orders[1:])
    forwards, backwards = (Shuffle(num_items, 64, 3) for _ in range(2))
    wanted = [0, 5000, 128, 1, 0, 3124, 12_500]
    expected = {index: backwards.items(index).clone() for index in reversed(wanted)}
    assert all(torch.equal(forwards.items(index), expected[index]) for index in wanted)


@pytest.mark.parametrize(("num_items", "world_size"), [(7, 2), (1000, 3), (65_536, 64), (LARGE, 2)])
def test_ranks_share_each_epoch(num_items, world_size):
    settings = {"batch_size": max(2, num_items // 1000), "number": 3}
    first, second = (set(epoch(num_items, share=Share(rank, world_size), **settings).tolist()) for rank in (0, 1))
    assert not first & second
    assert first | second <= set(epoch(num_items, **settings).tolist())
    assert world_size > 2 or len(first | second) == num_items


def test_a_rank_computes_its_own_batches_only(monkeypatch):
    computed, whole = [], Permutation.__call__
    monkeypatch.setattr(
        Permutation, "__call__", lambda self, places: computed.append(len(places)) or whole(self, places)
    )
    shuffle = Shuffle(10**8, 8, 0, Share(5, 1000))
    for index in range(1000):
        shuffle.items(index)
    assert sum(computed) <= 2**13


def test_the_order_stays_the_same_from_version_to_version():
    assert Shuffle(1000, 4, 0).items(500).tolist() == [385, 806, 236, 670]
    assert Shuffle(LARGE, 4, 0).items(0).tolist() == [188790, 112796, 32017, 31064]
    assert Shuffle(10**10, 4, 1).items(10**10).tolist() == [7884343635, 8165713266, 3431653853, 656288908]
