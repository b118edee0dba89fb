"""A user's own stream trains as it is, and goes on after a resume with the batch that is next."""

import pytest
import torch
from children import children
from own_datasets import Augmented, Shuffled, Stream

from ampsweep.data.stream_dataset import StreamDataset

CPU = torch.device("cpu")


@pytest.fixture
def make():
    made = []

    def make(train=None, val=None, **changes):
        settings = {"batch_size": 4, "seed": 3, "device": CPU, "num_workers": 0} | changes
        data = StreamDataset(train=train or Stream(), val=val or Stream(10), **settings)
        made.append(data)
        return data

    yield make
    for data in made:
        data.stop_workers()
    assert children() == []


def batches_of(data, indices=range(20)):
    return [data.train_batch(index) for index in indices]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def numbers(batch):
    return batch[:, 0].int().tolist()


def test_a_stream_begins_again_where_it_ends(make):
    batches = batches_of(make(), range(8))
    assert numbers(batches[5]) == [20, 21, 22, 23]
    assert numbers(batches[6]) == [24, 25, 100, 101], "26 items are no whole number of batches"


def test_one_worker_reads_what_this_process_would(make):
    expected = batches_of(make())
    assert same(batches_of(make(num_workers=1)), expected)
    assert same(batches_of(make(num_workers=1, prefetch_factor=5)), expected)


def test_workers_take_turns(make):
    batches = batches_of(make(num_workers=2), range(8))
    assert numbers(batches[0]) == [0, 2, 4, 6]
    assert numbers(batches[1]) == [1, 3, 5, 7]
    assert numbers(batches[6]) == [24, 100, 102, 104], "each begins again by itself"


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_earlier_batch_begins_from_the_start(make, num_workers):
    data, expected = make(num_workers=num_workers), batches_of(make(num_workers=num_workers))
    for indices in ([11, 12], range(7, 10), [0], [4]):
        assert same(batches_of(data, indices), [expected[index] for index in indices])


@pytest.mark.parametrize("stop", [1, 5, 13])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("stream", [Stream, Shuffled])
def test_a_resumed_stream_goes_on_with_the_next_batch(make, stream, num_workers, stop):
    expected = batches_of(make(stream(), num_workers=num_workers), range(16))
    assert same(batches_of(make(stream(), num_workers=num_workers), range(stop, 16)), expected[stop:])


def test_a_worker_without_a_batch_is_told(make):
    data = make(Stream(7), num_workers=2)
    with pytest.raises(ValueError, match="a pass of the stream has no full batch of 4 items for worker 2 of 2"):
        batches_of(data)


def test_a_stream_shorter_than_a_batch_is_told(make):
    with pytest.raises(ValueError, match=r"no full batch of 4 items$"):
        make(Stream(3)).train_batch(0)


@pytest.mark.parametrize("part", ["train", "val"])
def test_other_datasets_are_refused(make, part):
    with pytest.raises(ValueError, match=f"{part} must be a torch IterableDataset, got Augmented"):
        make(**{part: Augmented()})


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_stream_is_refused(make, part):
    with pytest.raises(ValueError, match=rf"{part} is an empty dataset \(Stream\)"):
        make(**{part: Stream(0)})


def test_validation_is_one_pass_or_so_many_batches(make):
    data = make()
    first = [*data.val_batches()]
    data.train_batch(3)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert same([*data.val_batches()], first)
    assert same([*make(num_val_batches=2).val_batches()], first[:2])


def test_the_fingerprint_is_of_the_first_items(make):
    assert make().fingerprint == make(seed=5, batch_size=3, num_workers=2).fingerprint
    assert make().fingerprint != make(Shuffled()).fingerprint
    assert make().fingerprint != make(val=Stream(5)).fingerprint


def test_a_check_of_one_batch_starts_no_worker(make):
    data = make(num_workers=1)
    data.train_batch(0)
    assert children() == []
    data.train_batch(1)
    assert len(children()) == 1


def test_a_prediction_starts_no_worker(make):
    batches_of(make(num_workers=3, device=torch.device("meta")))
    assert children() == []
