"""The memory of a step with any optimizer, predicted: on the CPU as measured, on CUDA as torch takes it there."""

import pytest
import torch
from steps import CPU, GPT, MLP, assert_to_the_byte, composed, predicted
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

OF_TORCH = ("Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adadelta", "Adamax", "ASGD", "Rprop")
EVERY = (*(f"torch.optim.{name}" for name in OF_TORCH), "own_optimizers.Lion", "own_optimizers.Decaying")
ADAMW, CUDA = ("optimizer=adamw",), TargetDevice("cuda")


def chosen(target, *settings):
    return (*MLP, "optimizer=custom", f"optimizer._target_={target}", "optimizer.lr=0.001", *settings)


@pytest.mark.parametrize(
    ("target", "mode"), [*((name, "amp_bf16") for name in EVERY), ("torch.optim.NAdam", "amp_fp16")]
)
def test_a_step_on_the_cpu_to_the_byte(target, mode):
    assert_to_the_byte(*chosen(target, "optimizer.groups=[{match:[*.bias],lr:0.0001}]", f"precision={mode}"))


@pytest.mark.parametrize(
    ("name", "settings", "on_host"),
    [
        *(("NAdam", (), {"step", "mu_product"}), ("NAdam", ("optimizer.capturable=true",), set())),
        *(("RMSprop", (), {"step"}), ("Adam", (), set()), ("Adam", ("optimizer.fused=false",), {"step"})),
        *(("Adagrad", ("optimizer.fused=false",), {"step"}), ("ASGD", (), set())),
    ],
)
def test_what_cuda_leaves_on_the_host_is_not_its_memory(name, settings, on_host):
    config = composed(*chosen(f"torch.optim.{name}", *settings))
    (first, *_) = FakeTraining(config, CUDA).trainer.optimizers["optimizer"].state.values()
    state = {key: value for key, value in first.items() if isinstance(value, torch.Tensor)}
    assert {key for key, value in state.items() if type(value) is torch.Tensor} == on_host
    assert all(value.device == CPU for value in state.values())
    assert all(float(state[key]) != 0 for key in on_host), "they count for real"


def test_cuda_takes_all_parameters_at_once_unless_fused():
    def peak_of(name, *settings):
        return predicted(*chosen(f"torch.optim.{name}", *settings), target=CUDA).peak().num_bytes

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
NUM_LARGE, NUM_SMALL = 64 * 128 + 128 * 128, 128 * 10 + 128 + 128 + 10
"""Numbers in the two weights whose states torchao keeps in 8 bits, and in the four other parameters."""
TABLES = {"adamw_8bit": 4 * 4 * 256, "adamw_fp8": 0}


@pytest.mark.parametrize(
    ("optimizer", "mode"), [("adamw_8bit", "fp32"), ("adamw_8bit", "pure_bf16"), ("adamw_fp8", "amp_fp16")]
)
def test_torchaos_states_to_the_byte(optimizer, mode):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    truth = assert_to_the_byte(*WIDE_MLP, f"optimizer={optimizer}", f"precision={mode}")
    steps, small, scales = 6 * 4, 2 if mode == "pure_bf16" else 4, 4 * NUM_LARGE // 256
    state = 2 * (NUM_LARGE + scales) + TABLES[optimizer] + 2 * small * NUM_SMALL + steps
    assert truth.peak["optimizer_state"] == state


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", [*TABLES])
def test_torchaos_compiled_step_on_cuda_takes_nothing_for_itself(optimizer):
    pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    packed, fused, loop = (
        predicted(*WIDE_MLP, *settings, target=CUDA)
        for settings in (
            (f"optimizer={optimizer}",),
            ("optimizer=adamw",),
            ("optimizer=adamw", "optimizer.fused=false"),
        )
    )
    end = packed.end - 1
    assert packed.at(end)["temporary"] == fused.at(end)["temporary"]
    assert packed.peak().categories["temporary"] <= fused.peak().categories["temporary"]
    assert packed.peak().num_bytes < fused.peak().num_bytes < loop.peak().num_bytes
    assert {operator.name for operator in packed.unvouched} == {operator.name for operator in fused.unvouched}


def test_a_prediction_leaves_torchaos_table_as_it_is():
    """torchao makes it once in a process, which may be within a prediction, where numbers have no values."""
    subclass_8bit = pytest.importorskip("torchao.optim.subclass_8bit", reason="needs torchao, of the extra `modes`")
    subclass_8bit.get_qmap_signed.cache_clear()
    predicted(*GPT, "optimizer=adamw_8bit")
    table = subclass_8bit.get_qmap_signed()
    assert (len(set(table)), max(table)) == (256, 1)
