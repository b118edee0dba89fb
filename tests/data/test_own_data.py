"""A user's own datasets train as they are: map-style, streams, and Hugging Face's."""

import pytest
import torch
from every_data import NUMBERS, noisy, rows, same
from own_datasets import Augmented, Read, Shuffled, Stream
from torch.utils.data import IterableDataset, TensorDataset

from ampsweep.data.base import for_rank, val_sets
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_batches import StreamItems
from ampsweep.data.stream_dataset import StreamDataset

COMMON = {"batch_size": 4, "seed": 3, "device": torch.device("cpu")}
of_hugging_face = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def squares(length=10, power=2):
    return Read(lambda i: {"inputs": torch.tensor(float(i)), "labels": i**power, "name": f"item {i}"}, length)


def adapted(train=None, val=None, **changes):
    train, val = squares() if train is None else train, squares(5) if val is None else val
    return MapDataset(train=train, val=val, **COMMON | changes)


@pytest.fixture
def make(opened):
    def make(train=None, val=None, **changes):
        return opened(StreamDataset(train=train or Stream(), val=val or Stream(10), **COMMON | changes))

    return make


def batches_of(data, indices=range(20)):
    return [data.train_batch(index) for index in indices]


def numbers(batch):
    return batch[:, 0].int().tolist()


def test_items_arrive_as_default_collate_makes_them():
    data = adapted()
    batch = data.train_batch(0)
    assert torch.equal(batch["inputs"] ** 2, batch["labels"].float())
    assert batch["name"] == [f"item {number:.0f}" for number in batch["inputs"]]
    inputs, targets = adapted(NUMBERS).train_batch(0)
    assert torch.equal(inputs, targets.float())
    seen = [item for batch in batches_of(data, range(5)) for item in batch["inputs"].tolist()]
    assert data.num_train_batches == 2.5
    assert sorted(seen[:10]) == sorted(seen[10:]) == [*range(10)]
    assert seen[:10] != seen[10:]
    assert [batch["inputs"].tolist() for batch in data.val_batches()] == [[0, 1, 2, 3], [4]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_validation_sets_have_names(make, opened, num_workers):
    near, far = squares(5), squares(3, power=1)
    data = opened(adapted(val={"near": near, "far": far}, num_workers=num_workers))
    for ranks in ([data], [for_rank(data, rank, 2) for rank in range(2)]):
        found = [val_sets(of_rank) for of_rank in ranks]
        for name, labels in (("near", [0, 1, 4, 9, 16]), ("far", [0, 1, 2])):
            batches = [batch for sets in found for batch, counts in sets[name] if counts]
            assert [label for batch in batches for label in batch["labels"].tolist()] == labels
    assert next(data.val_batches())["labels"].tolist() == [0, 1, 4, 9], "the first set stands for all"
    fingerprints = {adapted(val=val).fingerprint for val in (near, {"a": near}, {"b": near}, {"a": near, "b": far})}
    assert len(fingerprints) == 4
    streams = make(val={"long": Stream(10), "short": Stream(3)}, num_workers=num_workers)
    assert {name: sum(len(batch) for batch, _ in rounds) for name, rounds in val_sets(streams).items()} == {
        "long": 10,
        "short": 3,
    }
    assert [*val_sets(make())] == [""]


def test_sets_of_unsuitable_names_or_content_are_refused():
    def streamed(val):
        return StreamDataset(train=Stream(), val=val, **COMMON)

    for kind, val, sentence in (
        (
            adapted,
            {"a/b": squares()},
            "val.a/b: the name of a validation set has letters, digits, '_', '-' and '.' only",
        ),
        (adapted, {"far": Stream()}, "val.far must be a map-style dataset with a length and items, got Stream"),
        (streamed, {"far": Stream(0)}, r"val.far is an empty dataset \(Stream\)"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            kind(val=val)


def test_fingerprints_tell_datasets_apart(make):
    datasets = [squares(), squares(11), squares(power=3), Augmented(10), TensorDataset(torch.arange(10.0))]
    assert len({adapted(dataset).fingerprint for dataset in datasets}) == len(datasets)
    assert adapted(Augmented()).fingerprint == adapted(Augmented(), seed=1).fingerprint
    assert make().fingerprint == make(seed=5, batch_size=3, num_workers=2).fingerprint
    assert len({make().fingerprint, make(Shuffled()).fingerprint, make(val=Stream(5)).fingerprint}) == 3


def test_datasets_and_settings_that_do_not_fit_are_refused(make):
    for part in ("train", "val"):
        for kind, dataset, sentence in (
            (adapted, Stream(), f"{part} must be a map-style dataset with a length and items, got Stream"),
            (adapted, Augmented(0), rf"{part} is an empty dataset \(Augmented\)"),
            (make, Augmented(), f"{part} must be a torch IterableDataset, got Augmented"),
            (make, Stream(0), rf"{part} is an empty dataset \(Stream\)"),
        ):
            with pytest.raises(ValueError, match=sentence):
                kind(**{part: dataset})
    for settings, sentence in (
        ({"batch_size": 11}, "batch_size is 11, but there are only 10 training items"),
        ({"num_workers": "two"}, "num_workers must be a whole number, got two"),
        ({"num_workers": None}, "num_workers must be a whole number, got None"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 needs workers, but num_workers is 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            adapted(**settings)
    with pytest.raises(ValueError, match="a pass of the stream has no full batch of 4 items for worker 2 of 2"):
        batches_of(make(Stream(7), num_workers=2))
    with pytest.raises(ValueError, match=r"no full batch of 4 items$"):
        make(Stream(3)).train_batch(0)


def test_a_stream_begins_again_where_it_ends(make):
    expected = batches_of(make())
    assert same(batches_of(make(num_workers=1, prefetch_factor=5)), expected)
    assert numbers(expected[5]) == [20, 21, 22, 23]
    assert numbers(expected[6]) == [24, 25, 100, 101], "26 items are no whole number of batches"
    assert not torch.equal(expected[6][2, 1:], expected[0][0, 1:]), "each pass draws other random numbers"
    batches = batches_of(make(num_workers=2), range(8))
    assert [numbers(batches[index]) for index in range(2)] == [[0, 2, 4, 6], [1, 3, 5, 7]], "workers take turns"
    assert numbers(batches[6]) == [24, 100, 102, 104], "each begins again by itself"


@pytest.mark.parametrize(("stream", "num_workers"), [(Stream, 0), (Shuffled, 0), (Shuffled, 3)])
def test_a_stream_continues_or_begins_from_the_start(make, stream, num_workers):
    data, resumed, whole = (make(stream(), num_workers=num_workers) for _ in range(3))
    expected = batches_of(whole)
    for indices in ([13, 14], range(7, 10), [0], [4]):
        assert same(batches_of(data, indices), [expected[index] for index in indices])
    assert same(batches_of(resumed, range(5, 16)), expected[5:16])


def test_validation_is_one_pass_or_so_many_batches(make):
    data = make()
    first = [*data.val_batches()]
    data.train_batch(3)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert same([*data.val_batches()], first)
    assert same([*make(num_val_batches=2).val_batches()], first[:2])


def stream_of_rows():
    pytest.importorskip("datasets")
    return rows(40).to_iterable_dataset(num_shards=2).with_format("torch").shuffle(seed=5, buffer_size=10)


@of_hugging_face
def test_datasets_of_hugging_face_train_with_workers(make, opened):
    first, resumed = (make(stream_of_rows(), stream_of_rows(), num_workers=2) for _ in range(2))
    assert same(batches_of(resumed, range(7, 14)), batches_of(first, range(14))[7:])
    train, val = rows(40).with_transform(noisy), rows(6).with_format("torch")
    data, alone = (opened(adapted(train, val, num_workers=num_workers)) for num_workers in (2, 0))
    assert same(batches_of(data), batches_of(alone))
    assert data.train_batch(0)["x"].shape == (4, 2)
    assert [len(batch["y"]) for batch in data.val_batches()] == [4, 2]


class Wrapped(IterableDataset):
    """A user's stream around one of Hugging Face's."""

    def __init__(self, inner):
        self.inner, self.set_epoch = inner, inner.set_epoch

    def __iter__(self):
        return iter(self.inner)


@of_hugging_face
@pytest.mark.parametrize("wrap", [lambda inner: inner, Wrapped], ids=["its own", "wrapped"])
def test_each_worker_has_an_epoch_of_its_own(wrap):
    """Workers would overwrite each other's epoch, which Hugging Face keeps in shared memory."""
    inner = stream_of_rows()
    shared = inner._epoch
    assert shared.is_shared()
    items = StreamItems(wrap(inner), key=("key",), least=1, who="")
    items.read(44, 2, list, "key")  # two passes, and a part of the third
    assert (inner.epoch, shared.item()) == (2, 0)
