"""The gradient scaler at work: real overflows of float16 gradients, skipped steps, clipping and resumed scales."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from devices import CPU_AND_CUDA
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision

OPTIMIZERS = {
    f"{name}, {'fused' if fused else 'not fused'}": (kind, options | {"fused": fused})
    for name, kind, options in (("AdamW", torch.optim.AdamW, {}), ("SGD", torch.optim.SGD, {"momentum": 0.9}))
    for fused in (True, False)
}


def settings(**changes):
    return replace(PRECISION_MODES["amp_fp16"], **changes)


class Training:
    """A hand-written loop around `Precision`."""

    def __init__(self, precision, optimizer="AdamW, fused", max_norm=None):
        self.precision, self.max_norm = precision, max_norm
        torch.manual_seed(0)
        self.model = precision.convert(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        kind, options = OPTIMIZERS[optimizer]
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        self.inputs = torch.linspace(-1, 1, 64).reshape(8, 8).to(precision.device, precision.parameters_dtype)

    def step(self):
        with self.precision.autocast():
            out = self.model(self.inputs)
            loss = F.mse_loss(out, torch.ones_like(out))
        self.precision.backward(loss)
        if self.max_norm is not None:
            self.precision.unscale_(self.optimizer)
            self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
        self.precision.step(self.optimizer)
        torch.use_deterministic_algorithms(False)
        self.precision.update()
        self.optimizer.zero_grad()
        return loss.item()

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_an_overflow_changes_nothing_but_halves_the_scale(device, optimizer, max_norm):
    training = Training(Precision(settings(init_scale=2.0**40), device), optimizer, max_norm)
    before, scale, num_skipped = training.parameters(), 2.0**40, 0
    while equal(before, training.parameters()) and num_skipped < 40:
        assert training.precision.scale().item() == 2.0 ** (40 - num_skipped)
        training.step()
        num_skipped += training.precision.scale().item() < 2.0 ** (40 - num_skipped)
    assert num_skipped > 10
    assert all(int(state.get("step", 1)) == 1 for state in training.optimizer.state.values())
    training.precision.load_state_dict(training.precision.state_dict() | {"scale": scale})
    before = copy.deepcopy((training.optimizer.state_dict()["state"], training.model.state_dict()))
    for num_skipped in range(1, 4):
        training.step()
        assert training.precision.scale() == 2.0 ** (40 - num_skipped)
        now = (training.optimizer.state_dict()["state"], training.model.state_dict())
        torch.testing.assert_close(now, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_fused_and_other_optimizers_begin_alike_after_skips(device, name):
    trained = []
    for fused in ("fused", "not fused"):
        training = Training(Precision(settings(init_scale=2.0**32), device), f"{name}, {fused}")
        for _ in range(30):
            training.step()
        assert training.precision.scale() < 2.0**30, "several steps were skipped"
        trained.append(training.model.state_dict())
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-5)


def test_fused_momentum_of_master_weights_begins_at_zero():
    layer = Precision("master_fp16", "cpu").convert(nn.Linear(4, 4))
    precision = Precision("master_fp16", "cpu")
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    build = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    optimizer = precision.optimizer(build, layer.parameters())
    for _ in range(40):
        precision.backward(layer(torch.ones(2, 4, dtype=torch.float16)).float().square().mean())
        precision.step(optimizer)
        precision.update()
        optimizer.zero_grad()
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in layer.parameters()]
    assert all(momentum.isfinite().all() and momentum.abs().max() < 10 for momentum in momenta)
    assert precision.scale() < 2.0**30, "steps were skipped"


def test_the_scale_follows_backoff_growth_and_interval():
    chosen = settings(init_scale=2.0**30, growth_interval=3, growth_factor=4.0, backoff_factor=0.25)
    training, expected, num_since, changes = Training(Precision(chosen, "cpu")), 2.0**30, 0, set()
    for _ in range(30):
        before = training.parameters()
        assert training.precision.scale() == expected
        training.step()
        num_since = 0 if equal(before, training.parameters()) else num_since + 1
        if num_since in (0, 3):
            expected, num_since = expected * (4 if num_since else 0.25), 0
            changes.add(expected)
    assert len(changes) > 3


def test_gradients_are_unscaled_before_they_are_clipped():
    scaled = Training(Precision(settings(init_scale=1024.0), "cpu"), max_norm=0.01)
    unscaled = Training(Precision(settings(grad_scaler=False), "cpu"), max_norm=0.01)
    scaled.step()
    unscaled.step()
    # float16 rounds a scaled and an unscaled gradient alike, except near zero.
    assert scaled.norm.item() == pytest.approx(unscaled.norm.item(), rel=1e-3)
    assert scaled.norm > 0.01


def test_settings_reach_the_scaler_and_replace_a_checkpoints():
    mine = {"growth_factor": 3.0, "backoff_factor": 0.1, "growth_interval": 7}
    precision = Precision(settings(init_scale=8.0, **mine), "cpu")
    assert precision.state_dict() == {"scale": 8.0, "_growth_tracker": 0} | mine
    saved = Precision(settings(init_scale=16.0), "cpu").state_dict() | {"_growth_tracker": 2}
    assert precision.load_state_dict(saved) is None
    assert precision.state_dict() == {"scale": 16.0, "_growth_tracker": 2} | mine
    precision.load_state_dict(saved | {"_growth_tracker": 9})
    assert precision.state_dict()["_growth_tracker"] == 2, "a tracker beyond a shorter interval still grows"
    scale = precision.scale()
    assert (scale.dtype, scale.shape, scale.item()) == (torch.float32, (), precision.scaler.get_scale())


def test_a_scaler_in_only_one_of_checkpoint_and_mode_is_reported():
    precision = Precision(settings(init_scale=1024.0), "cpu")
    note = precision.load_state_dict(Precision("fp32", "cpu").state_dict())
    assert note == "the checkpoint has no GradScaler state; a fresh one starts at scale 1024"
    assert precision.scale() == 1024
    note = Precision("fp32", "cpu").load_state_dict(precision.state_dict())
    assert note == "the checkpoint's GradScaler state is ignored; this run has no scaler"
