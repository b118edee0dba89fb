"""The mixed-precision loop that anyone would write from torch's own parts, on batches of digits."""

from functools import partial

import torch
import torch.nn.functional as F
from assembled import CPU
from torch import nn

from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP

SEED = 5
DTYPES = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
OVERFLOWS = 2.0**24
"""A scale that is at first too large for float16 gradients."""
MODES = [("fp32", 1.0), ("amp_bf16", 1.0), ("amp_fp16", 65536.0), ("amp_fp16", OVERFLOWS)]


def settings(mode, init_scale):
    """Overrides with the seed and scaler of the loop."""
    scale = (f"precision.init_scale={init_scale:.1f}", "precision.growth_interval=4")
    return (f"precision={mode}", *scale, f"seed={SEED}")


def cross_entropy(model, batch, autocast, scaler):
    with autocast():
        return F.cross_entropy(model(batch[0]).float(), batch[1])


def small_mlp():
    return MLP(in_features=64, hidden_size=16, out_features=10, num_layers=3)


class Loop:
    """The parts of such a loop, and the figures of its steps."""

    def __init__(self, mode, init_scale, make_model=small_mlp):
        torch.manual_seed(SEED)
        self.model, self.next_batch = make_model(), 0
        self.data = Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
        scales = mode.endswith("fp16")
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=4, enabled=scales)
        self.autocast = partial(torch.autocast, "cpu", DTYPES.get(mode), enabled=mode in DTYPES)
        self.losses, self.norms, self.rates, self.scales = [], [], [], []

    def batch(self):
        self.next_batch += 1
        return self.data.train_batch(self.next_batch - 1)


def by_hand(
    mode, make_optimizer, *, steps, init_scale, make_model=small_mlp, loss=cross_entropy, accumulate=1, clip=None,
    set_rate=lambda optimizer, applied_steps: None,
):  # fmt: skip
    """Train; `set_rate(optimizer, applied_steps)` and `clip(parameters)` are called where such a loop calls them."""
    hand = Loop(mode, init_scale, make_model)
    parameters, scaler, applied = [*hand.model.parameters()], hand.scaler, 0
    optimizer = make_optimizer(parameters)
    for _ in range(steps):
        set_rate(optimizer, applied)
        total = 0.0
        for _ in range(accumulate):
            micro_loss = loss(hand.model, hand.batch(), hand.autocast, scaler) / accumulate
            scaler.scale(micro_loss).backward()
            total += micro_loss.detach()
        if clip is not None:
            scaler.unscale_(optimizer)
            hand.norms.append(nn.utils.get_total_norm([p.grad for p in parameters]).item())
            clip(parameters)
        scale = scaler.get_scale()
        hand.losses.append(total.item())
        hand.rates.append(float(optimizer.param_groups[0]["lr"]))
        hand.scales.append(scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        applied += scaler.get_scale() >= scale
    return hand


def assert_same(training, hand):
    """Every figure and parameter is bitwise that of the loop by hand."""
    for key, expected in (("train/loss", hand.losses), ("train/grad_norm", hand.norms), ("train/lr", hand.rates)):
        if expected:
            assert str([*training.column(key).values()]) == str(expected), key  # as text: a figure may be NaN
    assert [*training.column("amp/scale").values()] == ([] if set(hand.scales) == {1.0} else hand.scales)
    assert all(map(torch.equal, training.parameters(), hand.model.parameters()))
    if hand.scales[0] == OVERFLOWS:
        assert 0 < training.rows[-1]["amp/skipped_steps"] < len(hand.losses), "some steps were skipped, and some not"
