"""What a scaler must leave alone: the optimizer's state in a skipped step, and the settings of the run that goes on."""

import copy
from dataclasses import replace

import pytest
import torch
from devices import CPU_AND_CUDA
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision

OPTIMIZERS = {
    "adamw": lambda parameters, fused: torch.optim.AdamW(parameters, lr=1e-2, fused=fused),
    "sgd": lambda parameters, fused: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, fused=fused),
}
FP16 = PRECISION_MODES["amp_fp16"]


def small_model(precision):
    torch.manual_seed(0)
    return precision.convert(nn.Linear(8, 1))


def step(precision, model, optimizer):
    with precision.autocast():
        loss = (model(torch.linspace(-1, 1, 32, device=precision.device).reshape(4, 8)) - 9).square().mean()
    precision.backward(loss)
    precision.unscale_(optimizer)
    torch.use_deterministic_algorithms(True)  # which fills uninitialized memory with NaN
    precision.step(optimizer)
    torch.use_deterministic_algorithms(False)
    precision.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_a_skipped_step_leaves_the_optimizers_state_alone(device, name, fused):
    precision = Precision(FP16, device)
    model = small_model(precision)
    optimizer = OPTIMIZERS[name](model.parameters(), fused)
    for _ in range(3):
        step(precision, model, optimizer)
    precision.load_state_dict(precision.state_dict() | {"scale": 2.0**40})
    before = copy.deepcopy((optimizer.state_dict()["state"], model.state_dict()))
    for num_skipped in range(1, 13):
        step(precision, model, optimizer)
        assert precision.scale() == 2.0 ** (40 - num_skipped)
        torch.testing.assert_close((optimizer.state_dict()["state"], model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_fused_and_other_optimizers_begin_alike_after_skips(device, name):
    trained = []
    for fused in (True, False):
        precision = Precision(replace(FP16, init_scale=2.0**24), device)
        model = small_model(precision)
        optimizer = OPTIMIZERS[name](model.parameters(), fused)
        for _ in range(20):
            step(precision, model, optimizer)
        assert precision.scale() < 2.0**20, "several were skipped"
        trained.append(model.state_dict())
    torch.testing.assert_close(*trained, rtol=1e-6, atol=1e-6)


def test_a_resumed_scale_goes_on_under_the_new_settings():
    saved = Precision(replace(FP16, init_scale=8.0), "cpu").state_dict() | {"_growth_tracker": 2}
    precision = Precision(replace(FP16, growth_interval=4, growth_factor=3.0, backoff_factor=0.1), "cpu")
    assert precision.load_state_dict(saved) is None
    assert precision.state_dict() == {
        "scale": 8.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.1,
        "growth_interval": 4,
        "_growth_tracker": 2,
    }


def test_a_growth_interval_shorter_than_the_checkpoints_ends():
    precision = Precision(replace(FP16, growth_interval=4), "cpu")
    precision.load_state_dict(Precision(replace(FP16, init_scale=8.0), "cpu").state_dict() | {"_growth_tracker": 5})
    model = small_model(precision)
    optimizer = OPTIMIZERS["sgd"](model.parameters(), True)
    for _ in range(4):
        step(precision, model, optimizer)
    assert precision.scale() == 16.0


def test_a_scaler_for_float16_gradients_is_refused():
    with pytest.raises(ValueError, match=r"^pure_fp16 is not supported: .* use amp_fp16$"):
        Precision(replace(PRECISION_MODES["pure_fp16"], grad_scaler=True), "cpu")
