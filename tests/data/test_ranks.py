"""A step has the same samples however many ranks and micro-batches share them; validation counts each item once."""

from functools import partial

import pytest
import torch
from children import children
from every_data import EVERY, LASTING, NEEDS, STREAMS
from own_datasets import Augmented, Stream

from ampsweep.data.base import Data, for_rank, val_sets
from ampsweep.data.base import num_workers as workers_of
from ampsweep.data.digits import Digits
from ampsweep.data.map_dataset import ItemBatches, MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.data.tokens import TokenCrops
from ampsweep.nested_tensors import tensors_in

COMMON = {"seed": 3, "device": torch.device("cpu")}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=EVERY)
def kind(request):
    pytest.importorskip(NEEDS.get(EVERY[request.param], "torch"))
    return request.param


@pytest.fixture
def make(kind, tmp_path):
    """A data set of a kind as rank after rank sees it."""

    def made(batch_size, world_size=1):
        data = [EVERY[kind](tmp_path, batch_size=batch_size, **COMMON) for _ in range(world_size)]
        return [for_rank(data[rank], rank, world_size) for rank in range(world_size)]

    return made


def rows(batch):
    """All values of each item of a batch."""
    tensors = [tensor.reshape(len(tensor), -1).tolist() for tensor in tensors_in(batch)]
    return [tuple(map(tuple, item)) for item in zip(*tensors, strict=True)]


def samples(ranks, steps, micro_batches=1):
    """The items of all ranks' micro-batches in the whole order."""
    indices = [step * micro_batches + number for step in steps for number in range(micro_batches)]
    return [item for index in indices for data in ranks for item in rows(data.train_batch(index))]


def test_a_step_has_the_same_samples_on_any_number_of_ranks(kind, make):
    """Steps of 8 items: 30 items begin again within the fourth, 1,707 digits long before step 640."""
    later = [640, 641] if kind in LASTING else [5, 6] if kind in STREAMS else []  # a stream is opened again
    steps = [*range(12), *later]
    expected = samples(make(8), steps)
    for batch_size, world_size, micro_batches in ((4, 2, 1), (2, 2, 2), (1, 8, 1), (2, 1, 4)):
        assert samples(make(batch_size, world_size), steps, micro_batches) == expected


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


def test_validation_counts_each_item_on_one_rank(make):
    (alone,) = make(4)
    expected = [rows(batch) for batch in alone.val_batches()]
    assert all(counts for _, counts in val_sets(alone)[""])
    for world_size in (2, 3, 5):
        ranks = make(4, world_size)
        shares = [[*val_sets(data)[""]] for data in ranks]
        num_rounds = -(-len(expected) // world_size)
        assert {len(share) for share in shares} == {num_rounds}, "a sharded model computes on all ranks or on none"
        rounds = [share[number] for number in range(num_rounds) for share in shares]
        assert [rows(batch) for batch, counts in rounds if counts] == expected
        assert all(rows(batch) in expected for batch, counts in rounds if not counts)
        assert [rows(batch) for batch in ranks[-1].val_batches()] == [rows(batch) for batch, _ in shares[-1]]


@pytest.mark.parametrize("kind", LASTING)
def test_a_rank_makes_its_own_validation_batches_only(make, monkeypatch):
    data, made = make(2, 3)[1], []

    def noting(read):
        return lambda self, index: made.append(index) or read(self, index)

    for reader, name in ((Digits, "val_batch"), (TokenCrops, "val_batch"), (ItemBatches, "__getitem__")):
        monkeypatch.setattr(reader, name, noting(getattr(reader, name)))
    assert len([*data.val_batches()]) == len(made)
    assert all(index % 3 == 1 for index in made[:-1])


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [
        (partial(StreamDataset, train=Stream(), val=Stream(21)), 1),
        (partial(StreamDataset, train=Stream(), val=Stream(21)), 3),
        (partial(MapDataset, train=Augmented(30), val=Augmented(21)), 2),
    ],
)
def test_each_rank_has_workers_that_read_its_own_batches(opened, kind, num_workers):
    def ranks(world_size, num_workers=num_workers):
        data = kind(batch_size=2, num_workers=num_workers, **COMMON)
        return [opened(for_rank(data, rank, world_size)) for rank in range(world_size)]

    def validation(ranks):
        return [[(rows(batch), counts) for batch, counts in val_sets(data)[""]] for data in ranks]

    expected, before = samples(ranks(1), range(24)), len(children())
    reading = ranks(2)
    assert samples(reading, range(12)) == expected
    assert len(children()) - before == num_workers * 2
    assert validation(reading) == validation(ranks(2, num_workers=0))
