"""Two traces tell every batch size, and the answers drawn from them hold."""

import pytest
from steps import GPT, MLP, composed, predicted

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import LargestBatch, MemoryByBatchSize, saves_from
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.workload_prediction import predict_arm

TEXT = ("data=text", "data.seq_len=32", "data.batch_size=4")
CUDA = TargetDevice("cuda", (8, 0))


def arm_memory(*overrides, target):
    config = composed(*overrides)
    training = FakeTraining(config, target)
    return MemoryByBatchSize(training.trace, training.has_batch, target, config.data["batch_size"])


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
@pytest.mark.parametrize("target", [TargetDevice("cpu"), CUDA], ids=lambda target: target.kind)
def test_what_was_not_traced_is_what_a_trace_finds(mode, target):
    memory = arm_memory(*GPT, f"precision={mode}", "trainer.grad_accum_steps=2", target=target)
    for batch_size in (3, 16):
        told = memory.at(batch_size)
        traced = predicted(
            *GPT, f"precision={mode}", "trainer.grad_accum_steps=2", target=target, batch_size=batch_size
        ).peak()
        assert not told.is_traced
        assert (told.peak_bytes, told.peak) == (traced.num_bytes, traced.categories)


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
def test_a_penalty_on_gradients_is_predicted_for_a_gpu(mode):
    plain = (*MLP, f"precision={mode}")
    without, penalized = (predicted(*plain, *settings, target=CUDA) for settings in ((), ("task.gradient_penalty=1",)))
    before, after = (one.at(one.end_of_forward)["activations"] for one in (without, penalized))
    parameters = 4 * (65 * 64 + 65 * 64 + 65 * 10)
    assert after > before + parameters


@pytest.mark.parametrize("target", [TargetDevice("cpu"), CUDA], ids=lambda target: target.kind)
def test_the_largest_batch_fits_and_one_more_does_not(target):
    memory = arm_memory(*GPT, "precision=amp_bf16", target=target)
    limit = memory.at(37).reserved_bytes or memory.at(37).peak_bytes

    largest = memory.largest(limit).batch_size

    assert largest >= 37
    assert memory.at(largest).is_traced
    assert memory.at(largest + 1).is_traced
    assert memory.fits(largest, limit)
    assert not memory.fits(largest + 1, limit)


def test_data_on_a_gpu_is_a_category_of_its_own():
    resident, copied = (predicted(*workload, target=CUDA).peak().categories for workload in (GPT, (*GPT[:2], *TEXT)))
    assert resident["data"] == 5 * 2 * 4 * 32 * 8, "four batches and one for validation"
    assert (copied["data"], copied["other"] >= 2 * 4 * 32 * 8) == (0, True)


def test_on_a_cpu_no_data_is_memory_of_a_training():
    peaks = [predicted(*GPT, f"data.num_batches={number}").peak() for number in (2, 50)]
    assert peaks[0] == peaks[1]
    assert peaks[0].categories["data"] == 0


def test_where_not_even_one_item_fits_the_answer_is_none():
    assert arm_memory(*MLP, target=CUDA).largest(2**20) == LargestBatch(0)


def test_no_batch_is_larger_than_the_data():
    assert arm_memory(*MLP, target=CUDA).largest(2**30) == LargestBatch(1438, is_all_the_data=True)


def test_amp_saves_once_activations_outweigh_weight_copies():
    overrides = ("model=mlp_recipe", "model.hidden_size=256", "data.in_features=256", "data.out_features=256")
    small = (*overrides, "data.batch_size=8", "data.num_batches=2", "model.num_layers=8", "trainer.max_grad_norm=null")
    fp32, amp = (
        arm_memory(*small, f"precision={mode}", target=TargetDevice("cpu")).interpolation
        for mode in ("fp32", "amp_bf16")
    )
    start = saves_from(fp32, amp)
    assert start is not None
    assert start > 1
    peaks = [(fp32.at(size).peak().num_bytes, amp.at(size).peak().num_bytes) for size in (start - 1, start)]
    assert peaks[0][1] >= peaks[0][0]
    assert peaks[1][1] < peaks[1][0]


def test_an_interpolation_that_a_trace_contradicts_is_dropped():
    def rounded_up_to_eights(batch_size):
        """Two traces look even, and a third does not."""
        return predicted(*MLP, batch_size=-(-batch_size // 8) * 8 if batch_size > 2 else 2)

    memory = MemoryByBatchSize(rounded_up_to_eights, lambda size: True, TargetDevice("cpu"), batch_size=64)
    assert memory.interpolation is not None
    limit = predicted(*MLP, batch_size=32).peak().num_bytes

    largest = memory.largest(limit).batch_size

    assert memory.interpolation is None
    assert largest == 32


def test_one_item_alone_is_traced():
    memory = arm_memory(*GPT, target=CUDA)
    assert memory.at(1).is_traced
    assert not memory.at(3).is_traced


def test_equal_settings_are_one_prediction():
    arm = predict_arm(composed(*GPT, "predict.batch_sizes=[2,5]"), TargetDevice("cpu"))
    assert [memory.batch_size for memory in arm.curve] == [2, 5]
    assert arm.memory.batch_size == 4
    assert arm.memory.total_bytes == arm.memory.peak_bytes == sum(arm.memory.peak.values())
    assert arm.memory.allocated_bytes is None
