"""Hugging Face's datasets train as they are, stored and streamed."""

from functools import partial

import pytest
import torch
from children import children
from torch.utils.data import IterableDataset

from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_batches import StreamItems
from ampsweep.data.stream_dataset import StreamDataset

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CPU = torch.device("cpu")


def rows(length=40):
    return datasets.Dataset.from_dict({"x": [[float(i), 2.0] for i in range(length)], "y": [*range(length)]})


def noisy(batch):
    return {"x": [torch.tensor(x) + torch.rand(2) for x in batch["x"]], "y": batch["y"]}


def stream(num_shards=1):
    return rows().to_iterable_dataset(num_shards=num_shards).with_format("torch")


@pytest.fixture
def make():
    made = []

    def make(kind, train, val, **changes):
        made.append(kind(train=train, val=val, batch_size=4, seed=0, device=CPU, **{"num_workers": 0} | changes))
        return made[-1]

    yield make
    for data in made:
        data.stop_workers()
    assert children() == []


def same(left, right):
    return all(torch.equal(left[key], right[key]) for key in ("x", "y"))


@pytest.mark.parametrize("train", [lambda: rows().with_format("torch"), lambda: rows().with_transform(noisy)])
def test_a_stored_dataset_trains_with_any_number_of_workers(make, train):
    data, alone = (make(MapDataset, train(), rows(6).with_format("torch"), num_workers=n) for n in (2, 0))
    for index in range(12):
        batch = data.train_batch(index)
        assert batch["x"].shape == (4, 2)
        assert same(batch, alone.train_batch(index))
    assert [len(batch["y"]) for batch in data.val_batches()] == [4, 2]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_goes_on_after_a_resume(make, num_workers, shuffle):
    def train():
        return stream(2).shuffle(seed=5, buffer_size=10) if shuffle else stream(2)

    make = partial(make, StreamDataset, val=stream(), num_workers=num_workers)
    data = make(train())
    batches = [data.train_batch(index) for index in range(14)]
    resumed = make(train())
    assert all(same(resumed.train_batch(index), batches[index]) for index in range(7, 14))


class Wrapped(IterableDataset):
    """A stream of a user's around one of Hugging Face's."""

    def __init__(self, inner):
        self.inner = inner

    def set_epoch(self, epoch):
        self.inner.set_epoch(epoch)

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.parametrize("wrap", [lambda inner: inner, Wrapped], ids=["its own", "wrapped"])
def test_each_worker_has_an_epoch_of_its_own(wrap):
    """Each would write over the others' epoch: Hugging Face's keep it in shared memory."""
    inner = stream(2).shuffle(seed=5, buffer_size=10)
    shared = inner._epoch
    assert shared.is_shared()
    items = StreamItems(wrap(inner), key=("key",), least=1, who="")
    items.read(88, 2, list, "key")  # two passes, and a part of the third
    assert inner.epoch == 2
    assert shared.item() == 0, "where the other workers would see it"


def test_more_workers_than_shards_are_told(make):
    data = make(StreamDataset, stream(1), stream(), num_workers=2)
    with pytest.raises(ValueError, match="a pass of the stream has no full batch of 4 items for worker 2 of 2"):
        [data.train_batch(index) for index in range(3)]
