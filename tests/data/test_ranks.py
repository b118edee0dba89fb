"""A step has the same samples however many ranks and micro-batches share them; validation counts each item once."""

import pytest
import torch
from children import children
from every_data import EVERY, LASTING, NEEDS, OWN, STREAMS
from own_datasets import Augmented, Stream

from ampsweep.data.base import Data, Indexed, for_rank, val_rounds
from ampsweep.data.base import num_workers as workers_of
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.nested_tensors import tensors_in

COMMON = {"seed": 3, "device": torch.device("cpu")}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def make(request, tmp_path):
    """A data set of a kind as rank after rank sees it."""

    def made(batch_size, world_size=1):
        return [
            for_rank(request.param(tmp_path, batch_size=batch_size, **COMMON), rank, world_size)
            for rank in range(world_size)
        ]

    pytest.importorskip(NEEDS.get(request.param, "torch"))
    return made


def of_kinds(kinds):
    return pytest.mark.parametrize("make", kinds.values(), ids=kinds.keys(), indirect=True)


def rows(batch):
    """All values of each item of a batch."""
    tensors = [tensor.reshape(len(tensor), -1).tolist() for tensor in tensors_in(batch)]
    return [tuple(map(tuple, item)) for item in zip(*tensors, strict=True)]


def samples(ranks, batches):
    """The items of all ranks' micro-batches in the whole order."""
    return [item for index in batches for data in ranks for item in rows(data.train_batch(index))]


@of_kinds(EVERY)
def test_a_step_has_the_same_samples_on_any_number_of_ranks(make):
    num_steps = 12  # of 8 items each, so that data of 30 begins again within the fourth
    expected = samples(make(8), range(num_steps))
    assert samples(make(4, 2), range(num_steps)) == expected
    assert samples(make(2, 2), range(2 * num_steps)) == expected
    assert samples(make(1, 8), range(num_steps)) == expected
    assert samples(make(2), range(4 * num_steps)) == expected


@of_kinds(LASTING)
def test_the_samples_of_later_epochs_are_the_same(make):
    """Of 1,707 digits, 30 items or endless text."""
    later = 1707 // 8 * 3 + 1
    expected = samples(make(8), [later, later + 1])
    assert samples(make(4, 2), [later, later + 1]) == expected
    assert samples(make(2, 2), range(2 * later, 2 * later + 4)) == expected


@of_kinds(EVERY)
def test_a_rank_sees_data_of_the_same_content(make):
    (alone,), ranks = make(4), make(4, 3)
    assert for_rank(alone, 0, 1) is alone
    for data in ranks:
        assert isinstance(data, Data)
        assert workers_of(data) == workers_of(alone)
        assert (data.batch_size, data.tokens_per_batch) == (alone.batch_size, alone.tokens_per_batch)
        assert data.fingerprint == alone.fingerprint
        whole = alone.num_train_batches
        assert data.num_train_batches is None if whole is None else data.num_train_batches * 3 == whole


@of_kinds(EVERY)
def test_validation_counts_each_item_on_one_rank(make):
    (alone,) = make(4)
    expected = [rows(batch) for batch in alone.val_batches()]
    assert all(counts for _, counts in val_rounds(alone))
    for world_size in (2, 3, 5):
        ranks = make(4, world_size)
        shares = [[*val_rounds(data)] for data in ranks]
        num_rounds = -(-len(expected) // world_size)
        assert {len(share) for share in shares} == {num_rounds}, "a sharded model computes on all ranks or on none"
        rounds = [share[number] for number in range(num_rounds) for share in shares]
        assert [rows(batch) for batch, counts in rounds if counts] == expected
        assert all(rows(batch) in expected for batch, counts in rounds if not counts)
        assert [rows(batch) for batch in ranks[-1].val_batches()] == [rows(batch) for batch, _ in shares[-1]]


@of_kinds(LASTING | OWN)
def test_a_rank_makes_its_own_batches_only(make, monkeypatch):
    data, made, val_made = make(2, 3)[1], [], []
    if isinstance(inner := getattr(data, "_data", None), Indexed):
        whole_val = inner.val_batch
        monkeypatch.setattr(inner, "val_batch", lambda i: val_made.append(i) or whole_val(i), raising=False)
    elif inner is None:
        whole_val = type(data._val).__getitem__
        monkeypatch.setattr(type(data._val), "__getitem__", lambda self, i: val_made.append(i) or whole_val(self, i))
    assert [*data.val_batches()]
    assert all(index % 3 == 1 for index in val_made[:-1])
    if inner is not None:
        whole = inner.train_batch
        monkeypatch.setattr(inner, "train_batch", lambda i: made.append(i) or whole(i), raising=False)
        samples([data], range(4))
        assert made == [1, 4, 7, 10]


@pytest.mark.parametrize(("before", "then"), [((8, 1), (4, 2)), ((4, 2), (1, 4)), ((2, 4), (4, 1))])
@of_kinds(STREAMS)
def test_a_stream_continues_at_another_number_of_ranks(make, before, then):
    """Within the second pass; batch size and number of ranks before and after a resume."""
    expected = samples(make(8), range(8))
    assert samples(make(*before), range(5)) == expected[:40]
    first = 40 // (then[0] * then[1])
    assert samples(make(*then), range(first, first + 24 // (then[0] * then[1]))) == expected[40:64]


@pytest.mark.parametrize(("num_workers", "world_size"), [(1, 2), (3, 2), pytest.param(2, 4, marks=pytest.mark.nightly)])
def test_each_rank_has_its_own_workers_of_a_stream(opened, num_workers, world_size):
    def ranks(world_size):
        data = StreamDataset(train=Stream(), val=Stream(21), batch_size=2, num_workers=num_workers, **COMMON)
        return [opened(for_rank(data, rank, world_size)) for rank in range(world_size)]

    expected = samples(ranks(1), range(24))
    before = len(children())
    assert samples(ranks(world_size), range(24 // world_size)) == expected
    assert len(children()) - before == num_workers * world_size


def test_workers_of_a_rank_read_its_own_batches_only(opened):
    def ranks(num_workers):
        data = MapDataset(train=Augmented(30), val=Augmented(21), batch_size=2, num_workers=num_workers, **COMMON)
        return [opened(for_rank(data, rank, 2)) for rank in range(2)]

    def validation(ranks):
        return [[(rows(batch), counts) for batch, counts in val_rounds(data)] for data in ranks]

    alone, reading = ranks(0), ranks(2)
    assert samples(reading, range(20)) == samples(alone, range(20))
    assert len(children()) == 4
    assert validation(reading) == validation(alone)
