"""A user's own stream trains as it is, and goes on after a resume with the batch that is next."""

import pytest
import torch
from children import children
from own_datasets import Augmented, Shuffled, StatefulStream, Stream

from ampsweep.data.base import Stateful
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


@pytest.mark.parametrize("stop", [1, 5, 6, 13])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("stream", [Stream, StatefulStream, Shuffled])
def test_a_resumed_stream_goes_on_with_the_next_batch(make, stream, num_workers, stop):
    data = make(stream(), num_workers=num_workers)
    before = batches_of(data, range(stop))
    state = data.state_dict()
    resumed = make(stream(), num_workers=num_workers)
    resumed.load_state_dict(state)
    assert same(before + batches_of(resumed, range(stop, 16)), batches_of(data, range(16)))


def resumed_after(make, stream, stop, num_workers):
    data = make(stream(), num_workers=num_workers)
    batches_of(data, range(stop))
    resumed = make(stream(), num_workers=num_workers)
    return resumed, resumed.load_state_dict(data.state_dict())


def test_a_state_saves_reading_again(make):
    items = []

    class Counting(StatefulStream):
        def __iter__(self):
            for item in super().__iter__():
                items.append(item)
                yield item

    _, notes = resumed_after(make, Counting, 5, 0)
    assert notes == []
    assert len(items) == 2 * 8 + 5 * 4 + 4, "two fingerprints, five batches, and the last one once more"


def test_reading_again_is_told(make):
    _, notes = resumed_after(make, Stream, 5, 0)
    assert notes == ["the stream tells no state to go on from: its batches before batch 5 are read again and dropped"]


def test_a_state_that_is_not_all_of_it_is_found_out(make):
    _, notes = resumed_after(make, Shuffled, 5, 0)
    assert notes == [
        "the stream goes on with other batches from the state that it told: its batches before batch 5 are read again "
        "and dropped"
    ]


def test_another_number_of_workers_is_told(make):
    data = make(num_workers=2)
    batches_of(data, range(5))
    (note,) = make(num_workers=3).load_state_dict(data.state_dict())
    how = "was read by 2 workers in batches of 4 items and is now by 3 workers in batches of 4 items"
    assert note.startswith(f"the stream {how}, so that its batches are others from now on: its batches before batch 5")


def test_no_worker_and_one_are_the_same_stream(make):
    data = make(StatefulStream(), num_workers=1)
    expected = batches_of(data, range(12))
    batches_of(data, range(5))
    resumed = make(StatefulStream())
    assert resumed.load_state_dict(data.state_dict()) == []
    assert same(batches_of(resumed, range(5, 12)), expected[5:])


def test_the_state_is_not_ahead_by_what_is_copied_ahead(make):
    data = make(StatefulStream())
    expected = batches_of(data, range(12))
    batches_of(data, range(5))
    data._reader(5)  # as a copy ahead of the step reads it
    resumed = make(StatefulStream())
    resumed.load_state_dict(data.state_dict())
    assert torch.equal(resumed.train_batch(5), expected[5])


def test_its_state_is_a_part_of_checkpoints(make):
    assert isinstance(make(), Stateful)


def test_a_state_that_no_checkpoint_can_hold_is_left_out(make):
    class Odd(StatefulStream):
        def state_dict(self):
            return super().state_dict() | {"odd": object()}

    data = make(Odd())
    batches_of(data, range(5))
    assert data.state_dict() == {"position": 20, "batch_size": 4, "num_streams": 1, "places": []}


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
    assert make().fingerprint != make(StatefulStream()).fingerprint
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
