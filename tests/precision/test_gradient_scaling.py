"""The scaler at work: real overflows of real float16 gradients, and nothing of it in the user's loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision

INPUTS = torch.linspace(-1, 1, 64).reshape(8, 8)

OPTIMIZERS = {
    f"{name}, {'fused' if fused else 'not fused'}": (kind, options | {"fused": fused})
    for name, kind, options in (("AdamW", torch.optim.AdamW, {}), ("SGD", torch.optim.SGD, {"momentum": 0.9}))
    for fused in (True, False)
}


def settings(**changes):
    return replace(PRECISION_MODES["amp_fp16"], **changes)


class Training:
    """A hand-written loop around `Precision`, and nothing else of the suite."""

    def __init__(self, precision, optimizer="AdamW, fused", max_norm=None):
        self.precision = precision
        torch.manual_seed(0)
        self.model = precision.convert(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        kind, options = OPTIMIZERS[optimizer]
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        self.max_norm = max_norm

    def loss(self):
        with self.precision.autocast():
            out = self.model(INPUTS.to(self.precision.parameters_dtype))
            return F.mse_loss(out, torch.ones_like(out))

    def step(self):
        loss = self.loss()
        self.precision.backward(loss)
        if self.max_norm is not None:
            self.precision.unscale_(self.optimizer)
            self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.precision.step(self.optimizer)
        self.precision.update()
        self.optimizer.zero_grad()
        return loss.item()

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_overflow_changes_no_parameter_and_halves_the_scale(optimizer, max_norm):
    training = Training(Precision(settings(init_scale=2.0**40), "cpu"), optimizer, max_norm)
    num_skipped = 0
    for _ in range(40):
        before, scale = training.parameters(), training.precision.scale().item()
        training.step()
        after = training.precision.scale().item()
        if after == scale:
            assert not equal(before, training.parameters())
            break
        assert after == scale / 2
        assert equal(before, training.parameters())
        num_skipped += 1
    assert num_skipped > 10
    assert after == 2.0 ** (40 - num_skipped)
    assert all(int(state.get("step", 1)) == 1 for state in training.optimizer.state.values())


def test_the_scale_follows_backoff_growth_and_interval():
    interval, growth, backoff = 3, 4.0, 0.25
    chosen = settings(init_scale=2.0**30, growth_interval=interval, growth_factor=growth, backoff_factor=backoff)
    training = Training(Precision(chosen, "cpu"))
    expected, num_since, changes = 2.0**30, 0, set()
    for _ in range(30):
        before = training.parameters()
        assert training.precision.scale() == expected
        training.step()
        num_since = 0 if equal(before, training.parameters()) else num_since + 1
        if num_since == 0:
            expected *= backoff
            changes.add("backoff")
        elif num_since == interval:
            expected, num_since = expected * growth, 0
            changes.add("growth")
    assert changes == {"backoff", "growth"}


def test_gradients_are_unscaled_before_they_are_clipped():
    scaled = Training(Precision(settings(init_scale=1024.0), "cpu"), max_norm=0.01)
    unscaled = Training(Precision(settings(grad_scaler=False), "cpu"), max_norm=0.01)
    scaled.step()
    unscaled.step()
    # float16 rounds a scaled and an unscaled gradient alike, except near zero.
    assert scaled.norm.item() == pytest.approx(unscaled.norm.item(), rel=1e-3)
    assert scaled.norm > 0.01


def test_the_scale_that_is_read_is_the_scalers_own():
    precision = Precision("amp_fp16", "cpu")
    scale = precision.scale()
    assert (scale.dtype, scale.shape) == (torch.float32, ())
    assert scale == precision.scaler.get_scale() == 65536


def test_all_settings_reach_the_scaler():
    chosen = settings(init_scale=8.0, growth_factor=3.0, backoff_factor=0.1, growth_interval=7)
    state = Precision(chosen, "cpu").state_dict()
    assert state == {
        "scale": 8.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.1,
        "growth_interval": 7,
        "_growth_tracker": 0,
    }


def test_the_state_of_the_scaler_carries_over():
    one = Training(Precision(settings(init_scale=2.0**30, growth_interval=50), "cpu"))
    for _ in range(25):
        one.step()
    other = Precision(settings(growth_interval=50), "cpu")
    assert other.load_state_dict(one.precision.state_dict()) is None
    assert other.scale() == one.precision.scale() < 2.0**30
    assert other.state_dict() == one.precision.state_dict()
    assert other.state_dict()["_growth_tracker"] > 0


def test_a_checkpoint_without_a_scaler_gets_a_fresh_one():
    precision = Precision(settings(init_scale=1024.0), "cpu")
    note = precision.load_state_dict(Precision("fp32", "cpu").state_dict())
    assert note == "the checkpoint has no GradScaler state; a fresh one starts at scale 1024"
    assert precision.scale() == 1024


def test_a_scaler_in_a_checkpoint_is_ignored_without_amp():
    note = Precision("fp32", "cpu").load_state_dict(Precision("amp_fp16", "cpu").state_dict())
    assert note == "the checkpoint's GradScaler state is ignored; this run has no scaler"


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
def test_a_hand_written_loop_trains_as_it_does_with_torch_alone(mode):
    ours = Training(Precision(mode, "cpu"), max_norm=1.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=mode == "amp_fp16")
    dtype = torch.float16 if mode == "amp_fp16" else torch.bfloat16
    for _ in range(20):
        with torch.autocast("cpu", dtype, enabled=mode != "fp32"):
            out = model(INPUTS)
            loss = F.mse_loss(out, torch.ones_like(out))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert ours.step() == loss.item()
    assert equal(ours.parameters(), list(model.parameters()))


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16"])
def test_the_loss_falls_in_every_mode(mode):
    training = Training(Precision(mode, "cpu"))
    with training.precision.flags():
        losses = [training.step() for _ in range(60)]
    assert losses[-1] < losses[0] / 2
