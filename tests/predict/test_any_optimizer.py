"""The memory of a step with any optimizer, predicted; on the CPU as measured, on CUDA as torch makes it there."""

import pytest
import torch
from steps import CPU, MLP, composed, measured, predicted
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

OF_TORCH = ("Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adadelta", "Adamax", "ASGD", "Rprop")
EVERY = (*(f"torch.optim.{name}" for name in OF_TORCH), "own_optimizers.Lion", "own_optimizers.Decaying")
GROUPED = "optimizer.groups=[{match:[*.bias],lr:0.0001}]"
CUDA = TargetDevice("cuda")


def chosen(target, *settings):
    return (*MLP, "optimizer=custom", f"optimizer._target_={target}", "optimizer.lr=0.001", *settings)


@pytest.mark.parametrize(("target", "mode"), [*((one, "amp_bf16") for one in EVERY), ("torch.optim.NAdam", "amp_fp16")])
def test_to_the_byte_on_the_cpu(target, mode):
    overrides = chosen(target, GROUPED, f"precision={mode}")
    truth, timeline = measured(*overrides), predicted(*overrides)
    assert timeline.peak().categories == truth.peak
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_half_precision_parameters_are_predicted_as_trained(optimizer):
    overrides = (*MLP, f"optimizer={optimizer}", "precision=pure_bf16")
    timeline = predicted(*overrides)
    assert timeline.peak().categories == measured(*overrides).peak


def state_of(target, *settings):
    """The optimizer's state after its first step, and its settings, as they are predicted for CUDA."""
    training = FakeTraining(composed(*chosen(target, *settings)), CUDA)
    optimizer = training.trainer.optimizers["optimizer"]
    (first, *_) = optimizer.state.values()
    return {key: value for key, value in first.items() if isinstance(value, torch.Tensor)}, optimizer.defaults


@pytest.mark.parametrize(
    ("target", "settings", "on_host"),
    [
        ("torch.optim.NAdam", (), {"step", "mu_product"}),
        ("torch.optim.NAdam", ("optimizer.capturable=true",), set()),
        ("torch.optim.RMSprop", (), {"step"}),
        ("torch.optim.Adam", (), set()),
        ("torch.optim.Adam", ("optimizer.fused=false",), {"step"}),
        ("torch.optim.Adam", ("optimizer.capturable=true",), set()),
        ("torch.optim.Adagrad", ("optimizer.fused=false",), {"step"}),
        ("torch.optim.ASGD", (), set()),
    ],
)
def test_what_cuda_leaves_on_the_host_is_not_its_memory(target, settings, on_host):
    state, _ = state_of(target, *settings)
    assert {key for key, value in state.items() if type(value) is torch.Tensor} == on_host
    assert all(value.device == CPU for value in state.values())
    assert all(float(state[key]) != 0 for key in on_host), "they count for real"


def peak_of(target, *settings):
    return predicted(*chosen(target, *settings), target=CUDA).peak().num_bytes


@pytest.mark.parametrize("target", ["torch.optim.NAdam", "torch.optim.RMSprop", "torch.optim.Adadelta"])
def test_cuda_takes_all_parameters_at_once_unless_told_otherwise(target):
    assert peak_of(target) == peak_of(target, "optimizer.foreach=true") > peak_of(target, "optimizer.foreach=false")


def test_fused_kernels_need_no_copies_on_cuda():
    fused, loop = peak_of("torch.optim.Adam"), peak_of("torch.optim.Adam", "optimizer.fused=false")
    # torch chooses to take all at once only where nobody speaks of fused kernels.
    assert fused < loop < peak_of("torch.optim.Adam", "optimizer.foreach=true")


def test_torch_is_left_as_it_was():
    peak_of("torch.optim.NAdam")
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(AssertionError, match="must be on supported devices"):
        torch.optim.NAdam([parameter], capturable=True).step()
    assert FakeTensor not in _foreach_supported_types
