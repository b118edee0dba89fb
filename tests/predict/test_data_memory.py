"""What data that is read ahead takes: nothing on a host, and one batch on a GPU."""

import gc

import pytest
import torch
from children import children
from steps import composed, measured, predicted
from torch.utils.data import Dataset

from ampsweep.data.batch_reader import AHEAD_BYTES
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import Interpolation
from ampsweep.predict.target_device import TargetDevice

A100 = TargetDevice("cuda")
LARGE, SMALL = AHEAD_BYTES // 4 - 1, AHEAD_BYTES // 4 - 2
"""Widths of a row with which an item, which has a number beside it, is copied ahead and is not."""


class Rows(Dataset):
    """Items of one row and a number."""

    def __init__(self, width, length=64):
        self.width, self.length = width, length

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        return torch.full((self.width,), float(item)), torch.ones(1)


def rows(width, *more):
    """The overrides of a training on rows."""
    parts = [(part, key) for part in ("train", "val") for key in (f"_target_={__name__}.Rows", f"width={width}")]
    return (
        *("model=custom", "model._target_=torch.nn.Linear", f"+model.in_features={width}", "+model.out_features=1"),
        *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=8"),
        *(f"+data.{part}.{setting}" for part, setting in parts),
        *("task=regression", *more),
    )


@pytest.mark.parametrize("more", [(), ("trainer.grad_accum_steps=3",)])
def test_workers_change_no_peak_on_a_cpu(more, tmp_path):
    alone, read = (rows(LARGE, f"+data.num_workers={number}", *more) for number in (0, 2))
    peaks = [step.peak_bytes for step in (measured(*alone), measured(*read), measured(*read, resumed=tmp_path))]
    assert peaks == [predicted(*read).peak().num_bytes] * 3
    gc.collect()
    assert children() == []


def batches_alive(width, *more):
    """The number of batches on a GPU at the end of forward."""
    step = predicted(*rows(width, *more), target=A100)
    alive = step.at(step.end_of_forward)
    return (alive["data"] + alive["other"]) // (8 * 4 * (width + 1))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gpu_holds_the_next_batch_of_large_items(accumulate):
    more = f"trainer.grad_accum_steps={accumulate}"
    assert batches_alive(LARGE, more) == 2
    assert batches_alive(SMALL, more) == 1


def test_its_memory_is_affine_in_the_batch_size():
    training = FakeTraining(composed(*rows(LARGE)), A100)
    steps = {size: training.trace(size) for size in (4, 8, 13)}
    assert Interpolation((4, steps[4]), (8, steps[8])).agrees(13, steps[13])
