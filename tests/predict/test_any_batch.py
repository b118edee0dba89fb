"""The memory of a step at any batch size, by two traces; with data that is read ahead; and with any optimizer."""

import gc
from dataclasses import replace

import pytest
import torch
from children import children
from steps import GPT, MLP, REGRESSION, RESNET, assert_to_the_byte, composed, measured, own, predicted
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types
from torch.utils.data import Dataset

from ampsweep.data.batch_reader import AHEAD_BYTES
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import Interpolation, LargestBatch, MemoryByBatchSize, saves_from
from ampsweep.predict.target_device import TargetDevice

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
        assert (found.is_traced, found.peak_bytes, found.peak) == (False, traced.num_bytes, traced.categories)
    assert memory.at(1).is_traced, "one item is a special case"


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda target: target.kind)
def test_the_largest_batch_fits_and_one_more_does_not(target):
    memory = memory_of(*GPT, "precision=amp_bf16", target=target)
    limit = memory.at(37).reserved_bytes or memory.at(37).peak_bytes
    largest = memory.largest(limit).batch_size
    assert largest >= 37
    assert [memory.at(size).is_traced for size in (largest, largest + 1)] == [True, True]
    assert [memory.fits(size, limit) for size in (largest, largest + 1)] == [True, False]


@pytest.mark.parametrize("workload", [GPT, RESNET], ids=lambda workload: workload[0])
def test_the_work_of_a_step_is_interpolated_too(workload):
    overrides = (*workload, "precision=amp_fp16", "data.batch_size=8")
    training = FakeTraining(composed(*overrides), CUDA)
    memory = MemoryByBatchSize(training.trace, training.has_batch, CUDA, 8)
    for batch_size in (8, 19):
        traced = training.trace(batch_size).works
        assert [*map(grown, memory.works(batch_size))] == [*map(grown, traced)]


def grown(work):
    """Without the elements of the larger of two operands, such as weights and activations, of which one grows."""
    return replace(work, num_elements=0) if work.kind in ("product", "gather") else work


def test_what_grows_with_the_square_of_the_batch_is_searched_by_traces():
    memory = memory_of(*own("predicted_models.Contrastive"))
    assert memory.interpolation is None
    largest = memory.largest(2**25, traces=False).batch_size
    assert [memory.fits(size, 2**25) for size in (largest, largest + 1)] == [True, False]


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
    small = (*REGRESSION, "model.num_layers=8", "trainer.max_grad_norm=null")
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


LARGE, SMALL = AHEAD_BYTES // 4 - 1, AHEAD_BYTES // 4 - 2
"""Widths of a row, which has a number beside it: an item of the first is copied ahead, of the second not."""


class Rows(Dataset):
    def __init__(self, width):
        self.width = width

    def __len__(self):
        return 64

    def __getitem__(self, item):
        return torch.full((self.width,), float(item)), torch.ones(1)


def rows(width, *more):
    """The overrides of a training on rows."""
    parts = (f"+data.{part}={{_target_:{__name__}.Rows,width:{width}}}" for part in ("train", "val"))
    return (
        *own("torch.nn.Linear", ("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset")),
        *(f"+model.in_features={width}", "+model.out_features=1", "data.batch_size=8", *parts),
        *("task=regression", *more),
    )


def test_workers_change_no_peak_on_a_cpu(tmp_path):
    alone, read = (rows(LARGE, f"+data.num_workers={number}", "trainer.grad_accum_steps=3") for number in (0, 2))
    peaks = [step.peak_bytes for step in (measured(*alone), measured(*read), measured(*read, resumed=tmp_path))]
    assert peaks == [predicted(*read).peak().num_bytes] * 3
    gc.collect()
    assert children() == []


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("width", "number"), [(LARGE, 2), (SMALL, 1)])
def test_a_gpu_holds_the_next_batch_of_large_items(width, accumulate, number):
    training = FakeTraining(composed(*rows(width, f"trainer.grad_accum_steps={accumulate}")), CUDA)
    four, eight, more = (training.trace(size) for size in (4, 8, 13))
    alive = eight.at(eight.end_of_forward)
    assert (alive["data"] + alive["other"]) // (8 * 4 * (width + 1)) == number
    assert Interpolation((4, four), (8, eight)).agrees(13, more), "its memory is affine in the batch size"


def chosen(name, *settings):
    return (*MLP, "optimizer=custom", f"optimizer._target_=torch.optim.{name}", "optimizer.lr=0.001", *settings)


@pytest.mark.parametrize(
    ("name", "settings", "on_host"),
    [
        *(("NAdam", (), {"step", "mu_product"}), ("NAdam", ("optimizer.capturable=true",), set())),
        *(("RMSprop", (), {"step"}), ("Adam", (), set()), ("Adam", ("optimizer.fused=false",), {"step"})),
        *(("Adagrad", ("optimizer.fused=false",), {"step"}), ("ASGD", (), set())),
    ],
)
def test_what_cuda_leaves_on_the_host_is_not_its_memory(name, settings, on_host):
    (first, *_) = FakeTraining(composed(*chosen(name, *settings)), CUDA).trainer.optimizers["optimizer"].state.values()
    state = {key: value for key, value in first.items() if isinstance(value, torch.Tensor)}
    assert {key for key, value in state.items() if type(value) is torch.Tensor} == on_host
    assert all(value.device.type == "cpu" for value in state.values())
    assert all(float(state[key]) != 0 for key in on_host), "they count for real"


def test_cuda_takes_all_parameters_at_once_unless_fused():
    def peak_of(name, *settings):
        return predicted(*chosen(name, *settings), target=CUDA).peak().num_bytes

    for name in ("NAdam", "RMSprop"):
        assert peak_of(name) == peak_of(name, "optimizer.foreach=true") > peak_of(name, "optimizer.foreach=false")
    # torch chooses to take all at once only where `fused` is not set.
    assert peak_of("Adam") < peak_of("Adam", "optimizer.fused=false") < peak_of("Adam", "optimizer.foreach=true")

    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(AssertionError, match="must be on supported devices"):  # torch is restored
        torch.optim.NAdam([parameter], capturable=True).step()
    assert FakeTensor not in _foreach_supported_types


WIDE_MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "data.batch_size=32")


@pytest.mark.parametrize(
    ("optimizer", "mode"), [("adamw_8bit", "fp32"), ("adamw_8bit", "pure_bf16"), ("adamw_fp8", "amp_fp16")]
)
def test_torchaos_states_to_the_byte(optimizer, mode):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    assert_to_the_byte(*WIDE_MLP, f"optimizer={optimizer}", f"precision={mode}")


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_fp8"])
def test_torchaos_compiled_step_on_cuda_takes_nothing_for_itself(optimizer):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    packed, fused = (predicted(*WIDE_MLP, f"optimizer={name}", target=CUDA) for name in (optimizer, "adamw"))
    assert packed.at(packed.end - 1)["temporary"] == fused.at(packed.end - 1)["temporary"]
    assert packed.peak().categories["temporary"] <= fused.peak().categories["temporary"]
    assert packed.peak().num_bytes < fused.peak().num_bytes
    assert {operator.name for operator in packed.unvouched} == {operator.name for operator in fused.unvouched}


def test_a_prediction_leaves_torchaos_table_as_it_is():
    """torchao makes it once in a process, which may be within a prediction, where numbers have no values."""
    subclass_8bit = pytest.importorskip("torchao.optim.subclass_8bit", reason="needs torchao, of the extra `modes`")
    subclass_8bit.get_qmap_signed.cache_clear()
    predicted(*GPT, "optimizer=adamw_8bit")
    table = subclass_8bit.get_qmap_signed()
    assert (len(set(table)), max(table)) == (256, 1)
