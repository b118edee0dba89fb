"""A user's own dataset trains as it is."""

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ampsweep.data.map_dataset import MapDataset


class Squares(Dataset):
    def __init__(self, length=10, power=2):
        self.length, self.power = length, power

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"inputs": torch.tensor(float(index)), "labels": index**self.power, "name": f"item {index}"}


class Noisy(Dataset):
    """Items with an augmentation drawn from torch's generator."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + torch.rand(2), index


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


def adapted(train=None, val=None, **changes):
    common = {"batch_size": 4, "seed": 0, "device": torch.device("cpu")} | changes
    return MapDataset(train=Squares() if train is None else train, val=Squares(5) if val is None else val, **common)


def test_items_arrive_as_default_collate_makes_them():
    batch = adapted().train_batch(0)
    assert torch.equal(batch["inputs"] ** 2, batch["labels"].float())
    assert batch["name"] == [f"item {number:.0f}" for number in batch["inputs"]]


def test_pairs_arrive_as_pairs():
    inputs, targets = adapted(TensorDataset(torch.arange(10.0), torch.arange(10))).train_batch(0)
    assert torch.equal(inputs, targets.float())


def test_each_epoch_visits_every_item_once():
    data = adapted()
    seen = [item for index in range(5) for item in data.train_batch(index)["inputs"].tolist()]
    assert data.num_train_batches == 2.5
    assert sorted(seen[:10]) == sorted(seen[10:]) == [*range(10)]
    assert seen[:10] != seen[10:]


def test_validation_visits_every_item_in_order():
    batches = [batch["inputs"].tolist() for batch in adapted().val_batches()]
    assert batches == [[0, 1, 2, 3], [4]]


def test_augmentations_are_a_function_of_the_position():
    data = adapted(Noisy(), Noisy())
    first = data.train_batch(0)[0]
    torch.rand(5)
    data.train_batch(1)
    assert torch.equal(adapted(Noisy(), Noisy()).train_batch(0)[0], first)
    halves = [adapted(Noisy(), Noisy(), batch_size=2).train_batch(index)[0] for index in range(2)]
    assert torch.equal(torch.cat(halves), first)


def test_augmented_validation_is_the_same_in_batches_of_any_size():
    for _ in range(2):
        batches, others = ([*adapted(val=Noisy(), batch_size=size).val_batches()] for size in (4, 3))
        assert torch.equal(torch.cat([inputs for inputs, _ in batches]), torch.cat([inputs for inputs, _ in others]))


def test_the_fingerprint_tells_datasets_apart():
    datasets = [Squares(), Squares(11), Squares(power=3), Noisy(), TensorDataset(torch.arange(10.0))]
    assert len({adapted(dataset).fingerprint for dataset in datasets}) == len(datasets)
    assert adapted(Noisy()).fingerprint == adapted(Noisy()).fingerprint


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_dataset_without_a_length_is_refused(part):
    with pytest.raises(ValueError, match=f"{part} must be a map-style dataset with a length and items, got Endless"):
        adapted(**{part: Endless()})


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_dataset_is_refused(part):
    with pytest.raises(ValueError, match=rf"{part} is an empty dataset \(Squares\)"):
        adapted(**{part: Squares(0)})


def test_a_batch_larger_than_the_dataset_is_refused():
    with pytest.raises(ValueError, match="batch_size is 11, but there are only 10 training items"):
        adapted(batch_size=11)
