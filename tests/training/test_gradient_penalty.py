"""Gradient penalties are bitwise those of torch's own example, whatever the mode, and their memory is known before."""

import math

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, MLP, StopAfter, assemble, resumed
from test_hand_written_loops import DTYPES

from ampsweep.data.digits import Digits
from ampsweep.models import mlp

SEED, LR, NUM_STEPS, WEIGHT = 5, 1e-2, 14, 0.5
OVERFLOWS = 2.0**24
"""A scale with which the gradients of the first steps overflow float16."""
MODES = [("fp32", 1.0), ("amp_bf16", 1.0), ("amp_fp16", 65536.0), ("amp_fp16", OVERFLOWS)]
PENALIZED = (*MLP, f"seed={SEED}", "optimizer=sgd", f"optimizer.lr={LR}", "trainer.max_grad_norm=null")


def settings(mode, init_scale, accumulate=1):
    return (
        *PENALIZED,
        *(f"precision={mode}", f"precision.init_scale={init_scale:.1f}"),
        f"task.gradient_penalty={WEIGHT}",
        *(f"trainer.steps={NUM_STEPS}", f"trainer.grad_accum_steps={accumulate}"),
    )


def by_hand(mode, init_scale, accumulate):
    """The example "Gradient penalty" of torch's AMP examples."""
    torch.manual_seed(SEED)
    model = mlp.MLP(in_features=64, hidden_size=16, out_features=10, num_layers=3)
    data = Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=mode == "amp_fp16")
    losses, scales = [], []
    for step in range(NUM_STEPS):
        total = 0.0
        for micro in range(accumulate):
            input, target = data.train_batch(step * accumulate + micro)
            with torch.autocast("cpu", DTYPES[mode], enabled=mode != "fp32"):
                loss = F.cross_entropy(model(input), target)
            scaled_grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
            inv_scale = 1.0 / scaler.get_scale()
            grads = [p * inv_scale for p in scaled_grads]
            with torch.autocast("cpu", DTYPES[mode], enabled=mode != "fp32"):
                grad_norm = 0
                for grad in grads:
                    grad_norm += grad.pow(2).sum()
                grad_norm = grad_norm.sqrt()
                loss = (loss + WEIGHT * grad_norm) / accumulate
            scaler.scale(loss).backward()
            total += loss.detach()
        losses.append(float(total))
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses, scales, [*model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("mode", "init_scale"), MODES)
def test_a_penalty_is_bitwise_that_of_torchs_example(mode, init_scale, accumulate):
    losses, scales, parameters = by_hand(mode, init_scale, accumulate)
    training = assemble(*settings(mode, init_scale, accumulate))

    assert training.train().status == "completed"

    assert [*training.column("train/loss").values()] == pytest.approx(losses, rel=0, abs=0, nan_ok=True)
    assert all(map(torch.equal, training.parameters(), parameters))
    if mode == "amp_fp16":
        assert [*training.column("amp/scale").values()] == scales
        skipped = training.rows[-1]["amp/skipped_steps"]
        assert 0 < skipped < NUM_STEPS if init_scale == OVERFLOWS else skipped == 0


def test_a_scale_far_too_large_comes_down():
    training = assemble(*settings("amp_fp16", 2.0**36), "trainer.steps=40")

    assert training.train().status == "completed"

    losses = [*training.column("train/loss").values()]
    assert 5 < training.rows[-1]["amp/skipped_steps"] < 20
    assert not math.isfinite(losses[0])
    assert math.isfinite(losses[-1])


@pytest.mark.parametrize(("mode", "init_scale"), [MODES[0], MODES[-1]])
def test_a_penalized_training_resumes_bitwise(mode, init_scale, tmp_path):
    overrides = settings(mode, init_scale)
    reference = assemble(*overrides)
    reference.train()
    assemble(*overrides, directory=tmp_path).train(StopAfter(5))
    training, notes = resumed(tmp_path, *overrides)

    assert training.train().status == "completed"

    assert notes == []
    expected = {step: loss for step, loss in reference.column("train/loss").items() if step > 5}
    assert training.column("train/loss") == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert all(map(torch.equal, training.parameters(), reference.parameters()))


def test_a_penalty_that_no_scale_makes_finite_diverges():
    training = assemble(*settings("amp_fp16", 65536.0), "trainer.steps=100")
    with torch.no_grad():
        next(training.built.model.parameters()).fill_(torch.inf)

    ending = training.train()

    assert ending.status == "diverged"
    assert ending.error == "the training loss is nan at step 21, and no step since step 1 was applied"
