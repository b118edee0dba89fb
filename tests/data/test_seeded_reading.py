"""What is read depends on a key alone, and nobody else's random numbers on what is read."""

import random

import numpy as np
import pytest
import torch

from ampsweep.data.seeded_reading import SeededReading


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


def everybodys_next():
    """What a training would draw next; the state does not change."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    drawn = from_all() + from_all()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    return drawn


@pytest.mark.parametrize("read", READERS)
def test_the_same_key_gives_the_same_numbers(read):
    one, other = SeededReading(), SeededReading()
    expected = [one(read, "key", index) for index in range(4)]
    from_all()
    assert [other(read, "key", index) for index in (3, 1, 0, 2)] == [expected[index] for index in (3, 1, 0, 2)]
    assert read is from_none or expected[0] != expected[1]


@pytest.mark.parametrize("can_repeat", [True, False])
@pytest.mark.parametrize("read", READERS)
def test_what_a_training_draws_does_not_depend_on_it(read, can_repeat):
    reading = SeededReading(can_repeat=can_repeat)
    reading(read, "first")  # from here on it is known what is drawn
    from_numpy()  # leaves a normal number over for the next call
    before = everybodys_next()
    for index in range(3):
        reading(read, "key", index)
        assert everybodys_next() == before


@pytest.mark.parametrize("read", READERS)
def test_the_first_draw_is_undone_too(read):
    np.random.seed(0)
    random.seed(0)
    before = everybodys_next()
    SeededReading()(read, "key")
    assert everybodys_next() == before


def test_a_rare_draw_is_seeded_like_any():
    watching, seeding = SeededReading(), SeededReading(can_repeat=False)
    for index, read in enumerate([from_none] * 5 + [from_all, from_none, from_all]):
        assert watching(read, index) == seeding(read, index)


def test_what_was_read_without_a_draw_is_read_once():
    calls = []
    reading = SeededReading()
    for index in range(3):
        reading(lambda: calls.append(from_torch()), index)
    assert len(calls) == 3


def test_a_generator_of_another_kind_is_kept():
    own, usual = np.random.PCG64(3), np.random.get_bit_generator()
    np.random.set_bit_generator(own)
    try:
        before = everybodys_next()
        drawn = [SeededReading()(from_all, "key") for _ in range(2)]
        assert np.random.get_bit_generator() is own
        assert everybodys_next() == before
    finally:
        np.random.set_bit_generator(usual)
    assert drawn == [SeededReading()(from_all, "key")] * 2
