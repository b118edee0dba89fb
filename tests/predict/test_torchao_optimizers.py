"""The memory of torchao's optimizers, predicted: as measured on the CPU, and on CUDA without what is compiled."""

import pytest
from steps import GPT, measured, predicted

from ampsweep.predict.target_device import TargetDevice

pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")

MLP = ("model=mlp_small", "model.hidden_size=128", "data=digits", "data.batch_size=32")
NUM_LARGE, NUM_SMALL = 64 * 128 + 128 * 128, 128 * 10 + 128 + 128 + 10
"""Numbers in the two weights whose states are in 8 bits, and in the four other parameters."""
BLOCKS = 4 * NUM_LARGE // 256
"""Bytes of the scales of one state."""
TABLES = {"adamw_8bit": 4 * 4 * 256, "adamw_fp8": 0}
STEPS = 6 * 4


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16", "pure_bf16"])
@pytest.mark.parametrize("optimizer", [*TABLES])
def test_to_the_byte_on_the_cpu(optimizer, mode):
    overrides = (*MLP, f"optimizer={optimizer}", f"precision={mode}")
    truth, timeline = measured(*overrides), predicted(*overrides)
    assert timeline.peak().categories == truth.peak
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward
    small = 2 if mode == "pure_bf16" else 4
    state = 2 * (NUM_LARGE + BLOCKS) + TABLES[optimizer] + 2 * small * NUM_SMALL + STEPS
    assert truth.peak["optimizer_state"] == state


@pytest.mark.parametrize("optimizer", [*TABLES])
def test_a_compiled_step_on_cuda_takes_nothing_for_itself(optimizer):
    cuda = TargetDevice("cuda")
    packed = predicted(*MLP, f"optimizer={optimizer}", target=cuda)
    fused, loop = (
        predicted(*MLP, "optimizer=adamw", f"optimizer.fused={fused}", target=cuda) for fused in ("true", "false")
    )
    end = packed.end - 1
    assert packed.at(end)["temporary"] == fused.at(end)["temporary"]
    assert packed.peak().categories["temporary"] <= fused.peak().categories["temporary"]
    assert packed.peak().num_bytes < fused.peak().num_bytes < loop.peak().num_bytes
    assert {one.name for one in packed.unvouched} == {one.name for one in fused.unvouched}


def test_a_prediction_leaves_torchaos_table_as_it_is():
    """torchao makes it once in a process, which may be within a prediction, where numbers have no values."""
    from torchao.optim import subclass_8bit

    subclass_8bit.get_qmap_signed.cache_clear()
    predicted(*GPT, "optimizer=adamw_8bit")
    table = subclass_8bit.get_qmap_signed()
    assert len(set(table)) == 256
    assert max(table) == 1
