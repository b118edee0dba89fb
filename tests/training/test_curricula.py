"""Datasets and collate functions know the step of the batch that they make, wherever and however far ahead."""

import pytest
import torch
from assembled import assert_resumes_bitwise
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ampsweep.data.base import for_rank
from ampsweep.data.map_dataset import MapDataset
from ampsweep.data.stream_dataset import StreamDataset
from ampsweep.data.training_step import CurrentStep, training_step

BATCH, NUM_WORKERS = 4, 2
COMMON = {"batch_size": BATCH, "seed": 3, "device": torch.device("cpu")}


class Items(Dataset):
    """Pairs whose inputs are noisier in earlier steps; the last column is the step."""

    def __len__(self):
        return 40

    def __getitem__(self, item):
        step = training_step()
        inputs = torch.rand(3) / max(step, 1)
        return torch.cat([inputs, torch.tensor([step])]), inputs.sum(0, keepdim=True)


class Longer(IterableDataset):
    """Numbers of which those below the step are left out."""

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(worker, 90, num_workers):
            if number % 9 >= min(training_step(), 7):
                yield torch.tensor([number, training_step()]).float(), torch.tensor([number]).float()


def with_step(items):
    inputs, targets = map(torch.stack, zip(*items, strict=True))
    return inputs, targets, torch.tensor(training_step())


def steps_seen(data, indices, *, per_step):
    CurrentStep.batches = (1, 0, per_step)
    seen = []
    for index in indices:
        inputs, _, step = data.train_batch(index)
        assert {int(number) for number in inputs[:, -1]} == {int(step)}
        seen.append(int(step))
    assert {int(batch[2]) for batch in data.val_batches()} == {0}
    data.stop_workers()
    return seen


@pytest.mark.parametrize("num_workers", [0, NUM_WORKERS])
@pytest.mark.parametrize(("kind", "source"), [(MapDataset, Items), (StreamDataset, Longer)])
def test_each_batch_has_the_step_that_takes_it(kind, source, num_workers):
    settings = {"train": source(), "val": source(), "collate": with_step, "num_workers": num_workers, **COMMON}
    assert steps_seen(kind(**settings), range(8), per_step=3) == [1, 1, 1, 2, 2, 2, 3, 3]
    for rank in range(2):
        assert steps_seen(for_rank(kind(**settings), rank, 2), range(4), per_step=2) == [1, 1, 2, 2]


def test_a_rank_reads_the_items_of_others_for_their_steps():
    def numbers(rank, world_size, count):
        data = for_rank(StreamDataset(train=Longer(), val=Longer(), collate=with_step, **COMMON), rank, world_size)
        CurrentStep.batches = (1, 0, 2 // world_size)
        return [data.train_batch(index)[0].tolist() for index in range(count)]

    alone, first, second = numbers(0, 1, 24), numbers(0, 2, 12), numbers(1, 2, 12)
    assert [batch for both in zip(first, second, strict=True) for batch in both] == alone


@pytest.mark.parametrize(("kind", "source"), [(MapDataset, Items), (StreamDataset, Longer)])
def test_a_curriculum_resumes_bitwise(kind, source, tmp_path):
    part = f"{{_target_: {__name__}.{source.__name__}}}"
    data = ("data=custom", f"data._target_={kind.__module__}.{kind.__name__}", f"data.batch_size={BATCH}")
    parts = (f"+data.train={part}", f"+data.val={part}", f"+data.num_workers={NUM_WORKERS}")
    size = ("+model.out_features=1", f"+model.in_features={4 if source is Items else 2}")
    model = ("model=custom", "model._target_=torch.nn.Linear", *size, "task=regression")
    steps = ("trainer.steps=7", "trainer.grad_accum_steps=2", "optimizer.lr=1e-5")
    assert_resumes_bitwise(tmp_path, *data, *parts, *model, *steps, stop_after=4)
