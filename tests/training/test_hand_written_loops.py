"""The suite's losses are those of a loop that anyone would write by hand from torch's own parts."""

import math

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, assemble
from assembled import MLP as MLP_ON_DIGITS
from torch import nn

from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP

SEED, LR, NUM_STEPS = 5, 3e-3, 12
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
OVERFLOWS = 2.0**24
"""A scale that is too large at first for float16 gradients."""


def by_hand(mode, *, accumulate, init_scale, max_norm=1.0, max_value=None):
    """AdamW, clipping, a cosine over applied steps, as in torch's own examples of automatic mixed precision."""
    torch.manual_seed(SEED)
    model = MLP(in_features=64, hidden_size=16, out_features=10, num_layers=3)
    data = Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
    amp, scaled = mode != "fp32", mode == "amp_fp16"
    lr = torch.tensor(LR) if scaled else LR
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 * (1 + math.cos(math.pi * (n / NUM_STEPS))))
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=4, enabled=scaled)
    rows = []
    for step in range(NUM_STEPS):
        loss = 0.0
        for micro in range(accumulate):
            inputs, classes = data.train_batch(step * accumulate + micro)
            with torch.autocast("cpu", DTYPES[mode], enabled=amp):
                micro_loss = F.cross_entropy(model(inputs), classes) / accumulate
            scaler.scale(micro_loss).backward()
            loss += micro_loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if max_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), max_value)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        rows.append([loss.item(), norm.item(), float(optimizer.param_groups[0]["lr"]), scaler.get_scale()])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() >= rows[-1][-1]:
            schedule.step()
    return rows, list(model.parameters())


MODES = pytest.mark.parametrize(
    ("mode", "init_scale"), [("fp32", 1.0), ("amp_bf16", 1.0), ("amp_fp16", 65536.0), ("amp_fp16", OVERFLOWS)]
)


@MODES
@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_loss_is_bitwise_that_of_a_hand_written_loop(mode, init_scale, accumulate):
    expected = check_against_hand(mode, init_scale, accumulate, max_norm=1.0)
    assert init_scale == OVERFLOWS or expected[-1][0] < expected[0][0]


@MODES
@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_clipping_by_value_is_that_of_a_hand_written_loop(mode, init_scale, max_norm):
    """Where the scale overflows, infinite gradients become finite, and yet the step is skipped."""
    check_against_hand(mode, init_scale, 2, max_norm=max_norm, max_value=0.003)


def check_against_hand(mode, init_scale, accumulate, **clipping):
    expected, parameters = by_hand(mode, accumulate=accumulate, init_scale=init_scale, **clipping)
    limits = {key: "null" if value is None else value for key, value in clipping.items()}
    training = assemble(
        *MLP_ON_DIGITS,
        f"precision={mode}",
        f"precision.init_scale={init_scale:.1f}",
        "precision.growth_interval=4",
        f"seed={SEED}",
        "optimizer=adamw",
        f"optimizer.lr={LR}",
        "scheduler=cosine",
        f"trainer.steps={NUM_STEPS}",
        f"trainer.grad_accum_steps={accumulate}",
        *(f"trainer.{key.replace('max_', 'max_grad_')}={limit}" for key, limit in limits.items()),
    )
    assert training.train().status == "completed"
    keys = ("train/loss", "train/grad_norm", "train/lr", "amp/scale")
    rows = [[row.get(key, 1.0) for key in keys] for row in training.rows]
    same = [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in expected]  # a norm may be no number
    assert rows == same
    assert all(map(torch.equal, training.parameters(), parameters))
    if init_scale == OVERFLOWS:
        skipped = training.rows[-1]["amp/skipped_steps"]
        assert 0 < skipped < NUM_STEPS, "some steps were skipped, and some not"
    return expected
