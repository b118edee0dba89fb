"""Micro-batches that add up to the large batch, and gradients clipped to what those of fp32 are clipped to."""

import pytest
import torch
from assembled import GPT, MLP, assemble

OPEN = ("trainer.max_grad_norm=null", "trainer.max_grad_value=null")
BATCH = 16
NO_DROPOUT = (*GPT, "model.dropout=0", f"data.batch_size={BATCH}")
MODES = ("fp32", "amp_bf16", "amp_fp16")
ROUNDING = {"fp32": 1e-5, "amp_bf16": 2e-2, "amp_fp16": 4e-3}
"""The norm of what rounding changes of the gradients, over theirs: some units of the dtype's last place."""


class Cut:
    """The one large batch, a part a micro-batch."""

    def __init__(self, batch, num_parts):
        self.parts = list(zip(*(whole.chunk(num_parts) for whole in batch), strict=True))

    def train_batch(self, index):
        return self.parts[index % len(self.parts)]


def gradients_of(training):
    """The gradients that the optimizer is given in one step, unscaled, as one vector."""
    (optimizer,) = training.trainer.optimizers.values()
    found = []
    optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.detach().clone().flatten() for g in optimizer.param_groups for p in g["params"])
    )
    precision = training.trainer.precision
    scale = 1.0 if precision.scale() is None else float(precision.scale())
    is_unscaled = any((training.config.trainer.max_grad_norm, training.config.trainer.max_grad_value))
    training.trainer.train_step()
    assert found, "a step was taken"
    return torch.cat(found) / (1.0 if is_unscaled else scale)


def difference(one, other):
    """The norm of the difference over the norm."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workload", [(*MLP, f"data.batch_size={BATCH}"), NO_DROPOUT], ids=["mlp", "gpt"])
def test_accumulated_micro_batches_are_the_large_batch(workload, mode):
    whole = assemble(*workload, f"precision={mode}", *OPEN)
    batch = whole.built.data.train_batch(0)
    expected, loss = gradients_of(whole), None
    for num_parts in (1, 2, 4):
        parts = (f"trainer.grad_accum_steps={num_parts}", f"data.batch_size={BATCH // num_parts}")
        training = assemble(*workload, f"precision={mode}", *OPEN, *parts)
        training.trainer.data = Cut(batch, num_parts)
        assert difference(gradients_of(training), expected) < ROUNDING[mode], num_parts
        value = (
            assemble(*workload, f"precision={mode}", *OPEN, *parts, data=Cut(batch, num_parts))
            .trainer.train_step()
            .loss
        )
        loss = value if loss is None else loss
        assert value.item() == pytest.approx(loss.item(), rel=ROUNDING[mode])


def clipped(mode, *limits):
    return gradients_of(assemble(*NO_DROPOUT, f"precision={mode}", "trainer.grad_accum_steps=2", *OPEN, *limits))


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("limit", ["max_grad_norm=0.1", "max_grad_value=0.002"])
def test_clipped_gradients_are_those_of_fp32_within_rounding(mode, limit):
    """They are unscaled first: a limit on scaled ones would be one of another size."""
    limits = (f"trainer.{limit}",)
    expected = clipped("fp32", *limits)
    bound = float(limit.partition("=")[2])
    measure = expected.norm() if "norm" in limit else expected.abs().max()
    assert float(measure) == pytest.approx(bound, rel=1e-4)
    assert difference(expected, clipped("fp32")) > 0.1, "the limit counts"
    assert difference(clipped(mode, *limits), expected) < ROUNDING[mode]


def test_values_are_clipped_before_the_norm():
    free = clipped("fp32")
    expected = free.clamp(-0.002, 0.002)
    expected = expected * (0.01 / expected.norm())
    both = clipped("fp32", "trainer.max_grad_value=0.002", "trainer.max_grad_norm=0.01")
    assert difference(both, expected) < 1e-4
    assert float(both.norm()) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("limits", [("max_grad_value=0.01",), ("max_grad_value=0.01", "max_grad_norm=1.0")], ids=len)
def test_the_norm_of_a_row_is_from_before_clipping(limits):
    free, cut = (
        assemble(*MLP, *OPEN, *more, "trainer.steps=1", "trainer.log_every=1")
        for more in ((), [f"trainer.{limit}" for limit in limits])
    )
    for training in (free, cut):
        training.train()
    assert cut.rows[-1]["train/grad_norm"] == free.rows[-1]["train/grad_norm"] > 0.1


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_overflowing_step_is_skipped_though_it_is_clipped(optimizer, fused):
    """Clipping makes an infinite gradient finite; the scaler has found it when it unscaled."""
    limits = ("trainer.max_grad_norm=null", "trainer.max_grad_value=0.01")
    training = assemble(
        *MLP, "precision=amp_fp16", *limits, f"optimizer={optimizer}", f"optimizer.fused={fused}", "trainer.steps=2"
    )
    trainer, loss, seen = training.trainer, training.built.task.loss, []
    (only,) = trainer.optimizers.values()
    clip = trainer._clip

    def watched(*arguments, **more):
        norms = clip(*arguments, **more)
        seen.append(max(float(p.grad.abs().max()) for p in trainer._parameters[only]))
        return norms

    trainer._clip = watched
    with trainer.instruments, trainer.precision.flags():
        before, scale = training.parameters(), trainer.precision.scale()
        training.use_loss(lambda model, _: sum((p * 1e38).sum() for p in model.parameters()))
        trainer.train_step()
        assert seen == [pytest.approx(0.01)], "infinite ones were made finite"
        assert trainer.precision.scale() == scale / 2
        assert all(map(torch.equal, before, training.parameters()))
        training.use_loss(loss)
        trainer.train_step()
        values = trainer.instruments.scale_values()
    assert (values["amp/skipped_steps"], values["amp/applied_steps"]) == (1, 1)
    assert not any(map(torch.equal, before, training.parameters()))
