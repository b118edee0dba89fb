"""A step has the same samples however many ranks and micro-batches share them, and validation counts each item once."""

import pytest
import torch
from children import children
from every_data import EVERY, NEEDS, OF_THE_SUITE, STREAMS, SYNTHETIC, augmented, own
from own_datasets import Augmented, Stream

from ampsweep.data.base import Data, Indexed, for_rank, val_rounds
from ampsweep.data.base import num_workers as workers_of
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.nested_tensors import tensors_in

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def make(request, tmp_path):
    """A data set of a kind as rank after rank sees it."""

    def made(batch_size, world_size=1, **changes):
        def alone():
            return request.param(tmp_path, **({"batch_size": batch_size, "seed": 3, "device": CPU} | changes))

        return [for_rank(alone(), rank, world_size) for rank in range(world_size)]

    pytest.importorskip(NEEDS.get(request.param, "torch"))
    return made


def of_kinds(kinds):
    return pytest.mark.parametrize("make", kinds, ids=lambda kind: kind.__name__, indirect=True)


def rows(batch):
    """What distinguishes the items of a batch: all values of each."""
    tensors = [tensor.reshape(len(tensor), -1).tolist() for tensor in tensors_in(batch)]
    return [tuple(map(tuple, item)) for item in zip(*tensors, strict=True)]


def samples(ranks, batches):
    """The items of all ranks' micro-batches in the whole order."""
    return [item for index in batches for data in ranks for item in rows(data.train_batch(index))]


@of_kinds(EVERY)
def test_a_step_has_the_same_samples_on_any_number_of_ranks(make):
    num_steps = 12  # of 8 items each, so that data of 30 begins again in the midst of the fourth
    expected = samples(make(8), range(num_steps))
    assert samples(make(4, 2), range(num_steps)) == expected
    assert samples(make(2, 2), range(2 * num_steps)) == expected
    assert samples(make(1, 8), range(num_steps)) == expected
    assert samples(make(2), range(4 * num_steps)) == expected


@of_kinds([kind for kind in OF_THE_SUITE if kind not in SYNTHETIC])
def test_the_samples_of_later_epochs_are_the_same(make):
    """Of 1,707 digits, 30 items or endless text."""
    later = 1707 // 8 * 3 + 1
    expected = samples(make(8), [later, later + 1])
    assert samples(make(4, 2), [later, later + 1]) == expected
    assert samples(make(2, 2), range(2 * later, 2 * later + 4)) == expected


@of_kinds(EVERY)
def test_a_single_process_sees_the_data_itself(make):
    (data,) = make(4)
    assert for_rank(data, 0, 1) is data


@of_kinds(EVERY)
def test_a_rank_sees_data_of_the_same_content(make):
    (alone,), ranks = make(4), make(4, 3)
    for data in ranks:
        assert isinstance(data, Data)
        assert workers_of(data) == workers_of(alone)
        assert (data.batch_size, data.tokens_per_batch) == (alone.batch_size, alone.tokens_per_batch)
        assert data.fingerprint == alone.fingerprint
        if alone.num_train_batches is None:
            assert data.num_train_batches is None
        else:
            assert data.num_train_batches * 3 == alone.num_train_batches


@pytest.mark.parametrize("world_size", [2, 3, 5])
@of_kinds(EVERY)
def test_validation_counts_each_item_on_one_rank(make, world_size):
    (alone,), ranks = make(4), make(4, world_size)
    expected = [rows(batch) for batch in alone.val_batches()]
    assert all(counts for _, counts in val_rounds(alone))
    shares = [[*val_rounds(data)] for data in ranks]
    num_rounds = -(-len(expected) // world_size)
    assert {len(share) for share in shares} == {num_rounds}, "a sharded model computes on all ranks or on none"
    rounds = [share[number] for number in range(num_rounds) for share in shares]
    assert [rows(batch) for batch, counts in rounds if counts] == expected
    assert all(rows(batch) in expected for batch, counts in rounds if not counts)
    assert [rows(batch) for batch in ranks[-1].val_batches()] == [rows(batch) for batch, _ in shares[-1]]


@of_kinds([*OF_THE_SUITE, augmented])
def test_a_rank_makes_its_own_validation_batches_only(make, monkeypatch):
    data = make(2, 3)[1]
    if isinstance(inner := data._data if hasattr(data, "_data") else None, Indexed):
        made, whole = [], inner.val_batch
        monkeypatch.setattr(inner, "val_batch", lambda index: made.append(index) or whole(index), raising=False)
        [*data.val_batches()]
        assert all(index % 3 == 1 for index in made[:-1])
        assert len(made) == -(-inner.num_val_batches // 3)
    else:
        read, whole = [], type(data._val).__getitem__
        monkeypatch.setattr(type(data._val), "__getitem__", lambda batches, i: read.append(i) or whole(batches, i))
        [*data.val_batches()]
        assert all(index % 3 == 1 for index in read[:-1])


GOING_ON = [((8, 1), (4, 2)), ((4, 2), (8, 1)), ((4, 2), (4, 2)), ((4, 2), (1, 4)), ((2, 4), (4, 1))]
"""Batch size and number of ranks before and after a resume."""


@pytest.mark.parametrize(("before", "then"), GOING_ON)
@of_kinds(STREAMS)
def test_a_stream_goes_on_at_another_number_of_ranks(make, before, then):
    """In the midst of the second pass."""
    expected = samples(make(8), range(8))
    assert samples(make(*before), range(5)) == expected[:40]
    first = 40 // (then[0] * then[1])
    assert samples(make(*then), range(first, first + 24 // (then[0] * then[1]))) == expected[40:64]


@pytest.fixture
def ranks_of():
    """A stream as rank after rank sees it, whose workers end with the test."""
    made = []

    def ranks_of(stream, world_size, **changes):
        common = {"val": Stream(21), "batch_size": 2, "seed": 3, "device": CPU}
        new = [
            for_rank(StreamDataset(train=stream(), **common | changes), rank, world_size) for rank in range(world_size)
        ]
        made.extend(new)
        return new

    yield ranks_of
    for data in made:
        data.stop_workers()
    assert children() == []


@pytest.mark.parametrize(("num_workers", "world_size"), [(1, 2), (4, 2), (2, 4), (3, 2)])
def test_each_rank_has_so_many_workers_of_a_stream(ranks_of, num_workers, world_size):
    expected = samples(ranks_of(Stream, 1, num_workers=num_workers), range(24))
    ranks = ranks_of(Stream, world_size, num_workers=num_workers)
    before = len(children())
    assert samples(ranks, range(24 // world_size)) == expected
    assert len(children()) - before == num_workers * world_size


@of_kinds([own])
def test_a_rank_asks_a_users_data_for_its_own_batches_only(make, monkeypatch):
    data = make(2, 3)[1]
    asked, whole = [], data._data.train_batch
    monkeypatch.setattr(data._data, "train_batch", lambda index: asked.append(index) or whole(index))
    samples([data], range(4))
    assert asked == [1, 4, 7, 10]


def test_workers_of_a_rank_read_its_own_batches_only():
    def ranks(num_workers):
        data = MapDataset(
            train=Augmented(30), val=Augmented(21), batch_size=2, seed=3, device=CPU, num_workers=num_workers
        )
        return [for_rank(data, rank, 2) for rank in range(2)]

    expected = samples(ranks(0), range(20))
    reading = ranks(2)
    try:
        assert samples(reading, range(20)) == expected
        assert len(children()) == 4
        found = [[(rows(batch), counts) for batch, counts in val_rounds(data)] for data in reading]
        assert found == [[(rows(batch), counts) for batch, counts in val_rounds(data)] for data in ranks(0)]
    finally:
        for data in reading:
            data.stop_workers()
    assert children() == []
