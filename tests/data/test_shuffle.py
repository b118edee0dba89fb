"""The order of an epoch: a permutation that looks random, of any length, without memory for it."""

import time
import tracemalloc

import numpy as np
import pytest
import torch

from ampsweep.data.base import WHOLE, Share
from ampsweep.data.seeding import Permutation, Shuffle

LARGE = 200_003
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 1000, 65_536, 65_537, 65_539, 2**17, LARGE]
"""With squares, their neighbours and primes; above 65,536 items an order is computed."""


def epoch(num_items, *, batch_size=1, seed=0, number=0, share=WHOLE):
    """The items of an epoch, as far as they are the share's."""
    shuffle = Shuffle(num_items, batch_size, seed, share)
    begin, end = number * num_items, (number + 1) * num_items
    own = range(begin // (batch_size * share.world_size), -(-end // (batch_size * share.world_size)))
    items = [
        shuffle.items(index)[max(0, begin - first) : end - first]
        for index in own
        if (first := shuffle.first(index)) < end
    ]
    return torch.cat(items).numpy()


@pytest.fixture(scope="module")
def order():
    return epoch(LARGE, batch_size=7)


@pytest.mark.parametrize("num_items", LENGTHS)
def test_a_computed_order_has_each_item_once(num_items):
    items = Permutation(num_items, "a key")(np.arange(num_items, dtype=np.uint64))
    assert np.array_equal(np.sort(items), np.arange(num_items))


@pytest.mark.parametrize("num_items", LENGTHS[3:])
def test_each_epoch_has_each_item_once(num_items):
    for number in (0, 1, 3):
        items = epoch(num_items, batch_size=num_items // 4, number=number)
        assert np.array_equal(np.sort(items), np.arange(num_items))


@pytest.mark.parametrize("num_items", [1000, LARGE])
def test_the_order_does_not_depend_on_the_batch_size(num_items):
    for number in (0, 2):
        orders = [epoch(num_items, batch_size=size, number=number) for size in (7, 64, num_items // 3)]
        assert all(np.array_equal(orders[0], other) for other in orders[1:])


@pytest.mark.parametrize("num_items", [7, 1000, 65_536, LARGE])
@pytest.mark.parametrize("world_size", [2, 3, 64])
def test_ranks_share_each_epoch(num_items, world_size):
    batch_size = max(2, num_items // 1000)
    for number in (0, 3):
        shares = [epoch(num_items, batch_size=batch_size, number=number, share=Share(r, world_size)) for r in (0, 1)]
        whole = epoch(num_items, batch_size=batch_size, number=number)
        first, second = (set(share.tolist()) for share in shares)
        assert not first & second
        assert first | second <= set(whole.tolist())
        assert world_size > 2 or len(first | second) == num_items


def test_a_rank_computes_its_own_batches_only(monkeypatch):
    computed = []
    whole = Permutation.__call__
    monkeypatch.setattr(
        Permutation, "__call__", lambda self, places: computed.append(len(places)) or whole(self, places)
    )
    shuffle = Shuffle(10**8, 8, 0, Share(5, 1000))
    for index in range(1000):
        shuffle.items(index)
    assert sum(computed) <= 2**13


def test_a_batch_is_the_same_in_whatever_order_it_is_asked_for():
    one, other = (Shuffle(LARGE, 64, 3) for _ in range(2))
    wanted = [0, 5000, 128, 1, 0, 3124, 12_500]
    backwards = {index: other.items(index).clone() for index in reversed(wanted)}
    assert all(torch.equal(one.items(index), backwards[index]) for index in wanted)


def test_the_order_stays_the_same_from_version_to_version():
    assert Shuffle(LARGE, 4, 0).items(0).tolist() == [188790, 112796, 32017, 31064]
    assert Shuffle(10**10, 4, 1).items(10**10).tolist() == [7884343635, 8165713266, 3431653853, 656288908]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"number": 1}])
def test_another_seed_or_epoch_has_an_unrelated_order(order, changes):
    other = epoch(LARGE, batch_size=7, **changes)[: len(order)]
    assert (order == other).sum() < 10  # one is expected
    assert abs(np.corrcoef(order, other)[0, 1]) < 4 / LARGE**0.5


def test_places_tell_nothing_about_items(order):
    limit = 4 / LARGE**0.5  # four standard deviations of a random order
    places = np.arange(len(order))
    assert abs(np.corrcoef(places, order)[0, 1]) < limit
    for distance in (1, 2, 3, 64, 447, 448, 449):  # 448 is the base of its digits
        assert abs(np.corrcoef(order[:-distance], order[distance:])[0, 1]) < limit, distance


def test_neighbours_are_as_far_apart_as_chance_puts_them(order):
    steps = np.abs(np.diff(order)) / LARGE
    assert steps.mean() == pytest.approx(1 / 3, abs=4 * (1 / 18 / LARGE) ** 0.5)
    assert np.isin(np.abs(np.diff(order)), (1, 447, 448, 449)).sum() < 40  # eight are expected


@pytest.mark.parametrize("part", [lambda items: items % 448, lambda items: items // 448, lambda items: items % 64])
def test_the_parts_of_items_are_spread_evenly_over_the_epoch(order, part):
    """A chi-squared test of 16 stretches of the epoch against the values of a part, in 16 groups."""
    parts = part(order)
    groups = parts * 16 // (parts.max() + 1)
    stretches = np.arange(len(order)) * 16 // len(order)
    found = np.histogram2d(stretches, groups, bins=16)[0]
    expected = found.sum(0) * found.sum(1)[:, None] / found.sum()
    chi_squared = ((found - expected) ** 2 / expected).sum()
    assert 225 - 4 * 450**0.5 < chi_squared < 225 + 4 * 450**0.5


def test_orders_of_a_few_items_are_all_equally_likely():
    shuffle, orders = Shuffle(3, 3, 0), {}
    for index in range(6000):
        items = tuple(shuffle.items(index).tolist())
        orders[items] = orders.get(items, 0) + 1
    assert len(orders) == 6
    assert all(880 < count < 1120 for count in orders.values())


def test_ten_thousand_million_items_cost_nothing():
    tracemalloc.start()
    began_s = time.process_time()
    shuffle = Shuffle(10**10, 64, 0)
    found = [shuffle.items(index).clone() for index in (0, 1, 10**7, 10**9)]
    taken_s, (_, peak_bytes) = time.process_time() - began_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken_s < 1
    assert peak_bytes < 2 * 2**20
    assert len(torch.cat(found).unique()) == 256
    assert torch.cat(found).max() > 2**32
