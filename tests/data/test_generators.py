"""What is read depends on keys alone, and nobody else's random numbers on what is read."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from ampsweep.data.generators import read_items, seeded

KEY = ("train", 0)


def from_torch():
    return torch.rand(3).tolist()


def from_random():
    return [random.random(), random.gauss(0, 1)]


def from_numpy():
    return [*np.random.rand(3), np.random.randn()]


def from_all():
    return [*from_torch(), *from_random(), *from_numpy()]


def from_none():
    return [1.0]


READERS = [from_torch, from_random, from_numpy, from_all, from_none]


def reading(read, collate=list):
    """A reading of items that are what `read` draws."""
    return partial(read_items, lambda items: [(item, *read()) for item in items], collate)


def batch_of(reading, index, size=4):
    items = list(range(index * size, (index + 1) * size))
    return reading(items, KEY, first=items[0], index=index)


def everybodys_next():
    """What a training would draw next; the state does not change."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    drawn = from_all() + from_all()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    return drawn


@pytest.mark.parametrize("read", READERS)
def test_a_key_gives_the_same_numbers(read):
    expected = [seeded(read, "key", index) for index in range(4)]
    from_all()
    assert [seeded(read, "key", index) for index in (3, 1, 0, 2)] == [expected[index] for index in (3, 1, 0, 2)]
    assert read is from_none or expected[0] != expected[1]


@pytest.mark.parametrize("read", READERS)
def test_an_item_is_the_same_in_any_batch(read):
    one, other = reading(read), reading(read)
    expected = [batch_of(one, index) for index in range(4)]
    from_all()
    assert [batch_of(other, index) for index in (3, 1, 0, 2)] == [expected[index] for index in (3, 1, 0, 2)]
    items = [item for batch in expected for item in batch]
    assert [item for index in range(8) for item in batch_of(reading(read), index, 2)] == items
    assert read is from_none or len({item[1:] for item in items}) == 16


@pytest.mark.parametrize("read", READERS)
def test_what_a_training_draws_does_not_depend_on_it(read):
    of_items, of_collate = reading(read), reading(from_none, lambda items: [*items, read()])
    for one in (of_items, of_collate):
        batch_of(one, 0)
    from_numpy()  # leaves a normal number over for the next call
    before = everybodys_next()
    for index in range(3):
        for one in (of_items, of_collate):
            batch_of(one, index)
        seeded(read, "key", index)
        assert everybodys_next() == before


@pytest.mark.parametrize("read", READERS)
def test_the_first_draw_is_undone_too(read):
    np.random.seed(0)
    random.seed(0)
    before = everybodys_next()
    batch_of(reading(read), 0)
    assert everybodys_next() == before


def test_a_rare_draw_is_seeded_like_any():
    rare = partial(
        read_items, lambda items: [from_all() if item in (6, 7, 30) else from_none() for item in items], list
    )
    alone = partial(read_items, lambda items: [from_all() for _ in items], list)
    found = [item for index in range(8) for item in batch_of(rare, index)]
    drawn = [item for index in range(8) for item in batch_of(alone, index)]
    assert all(found[item] == (drawn[item] if item in (6, 7, 30) else [1.0]) for item in range(32))


def test_each_generator_is_seeded_by_itself():
    draws = [from_torch, from_none, from_numpy, from_random]

    def draw(items):
        return [draws[item % 4]() for item in items]

    rows = [item for index in range(16) for item in batch_of(partial(read_items, draw, list), index, 1)]
    again = [item for index in range(4) for item in batch_of(partial(read_items, draw, list), index, 4)]
    assert rows == again


@pytest.mark.parametrize("read", READERS)
def test_what_collate_draws_depends_on_the_batch(read):
    def collate(items):
        return [items.pop(), read()]  # of items that were changed nothing could be made again

    one, other = reading(from_random, collate), reading(from_random, collate)
    expected = [batch_of(one, index) for index in range(3)]
    assert [batch_of(other, index) for index in (2, 0, 1)] == [expected[index] for index in (2, 0, 1)]
    assert read is from_none or expected[0][1] != expected[1][1]


@pytest.mark.parametrize("read", [from_none, from_all])
def test_an_error_leaves_the_generators_alone(read):
    def fails(items):
        if items[0] >= 4:
            read()
            raise RuntimeError
        return [read() for _ in items]

    before, one = everybodys_next(), partial(read_items, fails, list)
    batch_of(one, 0)
    with pytest.raises(RuntimeError):
        batch_of(one, 1)
    assert everybodys_next() == before
