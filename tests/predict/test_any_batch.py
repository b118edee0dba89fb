"""Two traces give the step at every batch size, and the largest batch that fits; data that is read ahead."""

import gc

import pytest
import torch
from children import children
from steps import GPT, MLP, composed, measured, predicted
from torch.utils.data import Dataset

from ampsweep.data.batch_reader import AHEAD_BYTES
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import Interpolation, LargestBatch, MemoryByBatchSize, saves_from
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.workload_prediction import predict_arm

CPU, CUDA = TargetDevice("cpu"), TargetDevice("cuda", (8, 0))


def memory_of(*overrides, target=CUDA):
    config = composed(*overrides)
    training = FakeTraining(config, target)
    return MemoryByBatchSize(training.trace, training.has_batch, target, config.data["batch_size"])


@pytest.mark.parametrize(("target", "mode"), [(CPU, "fp32"), (CUDA, "amp_fp16")])
def test_what_was_interpolated_is_what_a_trace_finds(target, mode):
    overrides = (*GPT, f"precision={mode}", "trainer.grad_accum_steps=2")
    memory = memory_of(*overrides, target=target)
    training = FakeTraining(composed(*overrides), target)
    for batch_size in (3, 16):
        found, traced = memory.at(batch_size), training.trace(batch_size).peak()
        assert not found.is_traced
        assert (found.peak_bytes, found.peak) == (traced.num_bytes, traced.categories)
    assert memory.at(1).is_traced, "one item is a special case"


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda target: target.kind)
def test_the_largest_batch_fits_and_one_more_does_not(target):
    memory = memory_of(*GPT, "precision=amp_bf16", target=target)
    limit = memory.at(37).reserved_bytes or memory.at(37).peak_bytes
    largest = memory.largest(limit).batch_size
    assert largest >= 37
    assert [memory.at(size).is_traced for size in (largest, largest + 1)] == [True, True]
    assert [memory.fits(size, limit) for size in (largest, largest + 1)] == [True, False]


def test_there_may_be_no_batch_that_fits_or_none_that_does_not():
    memory = memory_of(*MLP)
    assert memory.largest(2**20) == LargestBatch(0)
    assert memory.largest(2**30) == LargestBatch(1438, is_all_the_data=True)


def test_resident_data_is_memory_on_a_gpu_only():
    text = (*GPT[:2], "data=text", "data.seq_len=32", "data.batch_size=4")
    resident, copied = (predicted(*workload, target=CUDA).peak().categories for workload in (GPT, text))
    assert resident["data"] == 5 * 2 * 4 * 32 * 8, "four batches and one for validation"
    assert copied["data"] == 0
    assert copied["other"] >= 2 * 4 * 32 * 8
    few, many = (predicted(*GPT, f"data.num_batches={number}").peak() for number in (2, 50))
    assert few == many
    assert few.categories["data"] == 0


def test_amp_saves_once_activations_outweigh_weight_copies():
    small = (
        *("model=mlp_recipe", "model.hidden_size=256", "data.in_features=256", "data.out_features=256"),
        *("data.batch_size=8", "data.num_batches=2", "model.num_layers=8", "trainer.max_grad_norm=null"),
    )
    fp32, amp = (memory_of(*small, f"precision={mode}", target=CPU).interpolation for mode in ("fp32", "amp_bf16"))
    start = saves_from(fp32, amp)
    assert start > 1
    before, after = (amp.at(size).peak().num_bytes - fp32.at(size).peak().num_bytes for size in (start - 1, start))
    assert before >= 0 > after


def test_an_interpolation_that_a_trace_contradicts_is_dropped():
    def rounded_up_to_eights(batch_size):
        """Two traces look even, and a third does not."""
        return training.trace(-(-batch_size // 8) * 8 if batch_size > 2 else 2)

    training = FakeTraining(composed(*MLP), CPU)
    memory = MemoryByBatchSize(rounded_up_to_eights, lambda size: True, CPU, batch_size=64)
    assert memory.interpolation is not None
    largest = memory.largest(training.trace(32).peak().num_bytes).batch_size
    assert memory.interpolation is None
    assert largest == 32


def test_an_arm_has_its_batch_sizes_and_its_bytes():
    arm = predict_arm(composed(*GPT, "predict.batch_sizes=[2,5]"), CPU)
    assert [memory.batch_size for memory in arm.curve] == [2, 5]
    assert arm.memory.batch_size == 4
    assert arm.memory.total_bytes == arm.memory.peak_bytes == sum(arm.memory.peak.values())
    assert arm.memory.allocated_bytes is None


LARGE, SMALL = AHEAD_BYTES // 4 - 1, AHEAD_BYTES // 4 - 2
"""Widths of a row, which has a number beside it: an item of the first is copied ahead, of the second not."""


class Rows(Dataset):
    """Items of one row and a number."""

    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 64

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


def test_workers_change_no_peak_on_a_cpu(tmp_path):
    alone, read = (rows(LARGE, f"+data.num_workers={number}", "trainer.grad_accum_steps=3") for number in (0, 2))
    peaks = [step.peak_bytes for step in (measured(*alone), measured(*read), measured(*read, resumed=tmp_path))]
    assert peaks == [predicted(*read).peak().num_bytes] * 3
    gc.collect()
    assert children() == []


@pytest.mark.parametrize(
    ("width", "accumulate", "number"), [(LARGE, 1, 2), (LARGE, 2, 2), (SMALL, 1, 1), (SMALL, 2, 1)]
)
def test_a_gpu_holds_the_next_batch_of_large_items(width, accumulate, number):
    step = predicted(*rows(width, f"trainer.grad_accum_steps={accumulate}"), target=CUDA)
    alive = step.at(step.end_of_forward)
    assert (alive["data"] + alive["other"]) // (8 * 4 * (width + 1)) == number


def test_its_memory_is_affine_in_the_batch_size():
    training = FakeTraining(composed(*rows(LARGE)), CUDA)
    steps = {size: training.trace(size) for size in (4, 8, 13)}
    assert Interpolation((4, steps[4]), (8, steps[8])).agrees(13, steps[13])
