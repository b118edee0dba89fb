"""The mixed-precision loop that anyone would write from torch's own parts, on batches of digits."""

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from assembled import CPU
from torch import nn

from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP

SEED = 5
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
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


def by_hand(
    mode, make_optimizer, *, steps, init_scale, make_model=small_mlp, loss=cross_entropy, accumulate=1, clip=None,
    set_rate=lambda optimizer, applied_steps: None,
):  # fmt: skip
    """Train; `set_rate(optimizer, applied_steps)` and `clip(parameters)` are called where such a loop calls them."""
    torch.manual_seed(SEED)
    model = make_model()
    data = Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=4, enabled=mode == "amp_fp16")
    autocast = partial(torch.autocast, "cpu", DTYPES[mode], enabled=mode != "fp32")
    parameters = [*model.parameters()]
    hand = SimpleNamespace(losses=[], norms=[], rates=[], scales=[], parameters=parameters)
    applied = 0
    for step in range(steps):
        set_rate(optimizer, applied)
        total = 0.0
        for micro in range(accumulate):
            batch = data.train_batch(step * accumulate + micro)
            micro_loss = loss(model, batch, autocast, scaler) / accumulate
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
            assert str([*training.column(key).values()]) == str(expected), key  # as text: a norm may be NaN
    assert [*training.column("amp/scale").values()] == ([] if set(hand.scales) == {1.0} else hand.scales)
    assert all(map(torch.equal, training.parameters(), hand.parameters))
    if hand.scales[0] == OVERFLOWS:
        assert 0 < training.rows[-1]["amp/skipped_steps"] < len(hand.losses), "some steps were skipped, and some not"
