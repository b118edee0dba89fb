"""Randomness of data: draws while reading depend on keys alone, and an epoch's order is a fixed permutation."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from ampsweep.data.base import Share
from ampsweep.data.generators import read_items, seeded
from ampsweep.data.seeding import Shuffle, seeds_of

DRAWS = [
    lambda: torch.rand(3).tolist(),
    lambda: [random.random(), random.gauss(0, 1)],
    lambda: [*np.random.rand(3), np.random.randn()],  # leaves a normal number over for the next call
    list,
]


def draw_all():
    return [number for draw in DRAWS for number in draw()]


def batches(indices, size=4, *, fetch=lambda items: [DRAWS[item % 4]() for item in items], collate=list):
    """Batches in the order of their indices; the default's items draw from one generator each, or from none."""
    found = {}
    for index in indices:
        items = list(range(index * size, (index + 1) * size))
        found[index] = read_items(fetch, collate, items, ("train", 0), first=items[0], index=index)
    return [found[index] for index in sorted(found)]


def items_of(batches):
    return [item for batch in batches for item in batch]


def states():
    """Of the generators that a training draws from."""
    _, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), keys.tolist(), rest


def test_an_item_draws_the_same_in_any_batch_whatever_the_others_draw():
    expected = batches(range(10))
    draw_all()
    assert batches((3, 1, 0, 2, *range(4, 10))) == expected
    for size in (1, 2, 8):
        assert items_of(batches(range(40 // size), size)) == items_of(expected)
    alone = items_of(batches(range(10), fetch=lambda items: [draw_all() for _ in items]))
    assert [item[:3] for item in alone[::4]] == items_of(expected)[::4]
    assert len(set(map(tuple, alone))) == 40
    by_key = [seeded(draw_all, "key", index) for index in range(3)]
    assert [seeded(draw_all, "key", index) for index in (2, 1, 0)] == by_key[::-1]
    assert by_key[0] != by_key[1]


def test_numbers_drawn_by_collate_depend_on_the_batch():
    def collate(items):
        return [items.pop(), draw_all()]  # a changed list of items could not be collated again

    expected = batches(range(3), collate=collate)
    assert batches((2, 0, 1), collate=collate) == expected
    assert expected[0][1] != expected[1][1]


def test_the_trainings_own_numbers_do_not_depend_on_reading():
    def fails(items):
        draw_all()
        raise RuntimeError

    before = states()
    for index in range(3):
        batches([index], collate=lambda items: [*items, draw_all()])
        seeded(draw_all, "key", index)
        assert states() == before
    with pytest.raises(RuntimeError):
        batches([1], fetch=fails)
    with pytest.raises(RuntimeError):
        seeded(partial(fails, []), "key")
    assert states() == before


LARGE = 200_003
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 1000, LARGE]


def epoch(num_items, batch_size, number):
    """The items of an epoch in their order."""
    begin, shuffle = number * num_items, Shuffle(num_items, batch_size, seed=0)
    indices = range(begin // batch_size, -(-(begin + num_items) // batch_size))
    return torch.cat([shuffle.items(index) for index in indices])[begin % batch_size :][:num_items].numpy()


@pytest.mark.parametrize("num_items", LENGTHS)
def test_each_epoch_has_each_item_once(num_items):
    for number in (0, 1, 3):
        items = epoch(num_items, max(1, num_items // 4), number)
        assert np.array_equal(np.sort(items), np.arange(num_items))


@pytest.mark.parametrize("num_items", [1000, LARGE])
def test_the_order_does_not_depend_on_batch_size_access_or_ranks(num_items):
    for number in (0, 2):
        orders = [epoch(num_items, size, number) for size in (7, 64, num_items // 3)]
        assert all(np.array_equal(orders[0], other) for other in orders[1:])
    forwards, backwards = (Shuffle(num_items, 64, 3) for _ in range(2))
    wanted = [0, 5000, 128, 1, 0, 3124, 12_500]
    expected = {index: backwards.items(index).clone() for index in reversed(wanted)}
    assert all(torch.equal(forwards.items(index), expected[index]) for index in wanted)
    for rank in range(3):
        of_rank = Shuffle(num_items, 64, 3, Share(rank, 3))
        assert all(torch.equal(of_rank.items(index), forwards.items(3 * index + rank)) for index in (0, 1, 5, 1041))


def test_the_order_stays_the_same_from_version_to_version():
    assert Shuffle(1000, 4, 0).items(500).tolist() == [385, 806, 236, 670]
    assert seeds_of("train", 0, "item", first=2**40, number=2) == [4096767313, 3843254519]
