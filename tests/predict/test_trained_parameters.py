"""Predictions of models with missing, changed or complex gradients: to the byte."""

import pytest
import torch
import torch.nn.functional as F
from steps import MLP, measured, predicted

from ampsweep.predict.fake_kernels import FakeKernels
from ampsweep.predict.target_device import TargetDevice


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "pure_bf16", "bf16_sr", "master_bf16"])
@pytest.mark.parametrize("model", ["Unused", "Hooked", "Waves"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_such_a_step_to_the_byte(model, mode, optimizer):
    own = ("model=custom", f"model._target_=partly_trained_models.{model}")
    momentum = ("optimizer.momentum=0.9",) if optimizer == "sgd" else ()
    overrides = (*own, "data=digits", "data.batch_size=6", f"optimizer={optimizer}", *momentum, f"precision={mode}")

    truth, timeline = measured(*overrides), predicted(*overrides)

    assert timeline.peak().categories == truth.peak
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
def test_a_step_after_which_weights_are_averaged(mode):
    overrides = (*MLP, "task._target_=partly_trained_models.Averaging", f"precision={mode}")
    assert predicted(*overrides).peak().categories == measured(*overrides).peak


def gradient_of_a_turned_input():
    inputs, gradient = (torch.ones(2, 4, 3).transpose(1, 2) for _ in range(2))
    outputs = F.layer_norm(inputs.requires_grad_(), (4,))
    return torch.autograd.grad(outputs, inputs, gradient)[0].stride()


def test_a_turned_gradient_has_the_layout_of_the_kernels():
    with FakeKernels(TargetDevice("cpu")):
        predicted_layout = gradient_of_a_turned_input()
    assert predicted_layout == gradient_of_a_turned_input() == (12, 4, 1)
