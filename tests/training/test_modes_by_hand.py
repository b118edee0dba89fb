"""Each mode with half-precision parameters trains bitwise as a loop written by hand from the same parts."""

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, MLP, StopAfter, assemble, resumed, trained
from hand_loop import OVERFLOWS, SEED, Loop, assert_same, settings
from torch import nn

from ampsweep.precision.stochastic_rounding import RoundingNoise, round_stochastically_

LR, NUM_STEPS = 3e-3, 8


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LR, weight_decay=0.01, fused=True)


class Pure:
    """torch's fused AdamW, whose state has the parameters' dtype."""

    def __init__(self, model, scaler):
        self.model, self.scaler = model.bfloat16(), scaler
        self.optimizer = adamw(model.parameters())

    def step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


class Master:
    """AdamW over float32 copies of the parameters as they were before they were rounded.

    In float16 the gradients are scaled, and the float32 gradients are unscaled and clipped.
    """

    def __init__(self, model, scaler):
        self.masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        self.model, self.scaler = model.to(torch.float16 if scaler.is_enabled() else torch.bfloat16), scaler
        self.optimizer = adamw(self.masters)

    def step(self):
        pairs = [*zip(self.model.parameters(), self.masters, strict=True)]
        if not self.scaler.is_enabled():
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for parameter, master in pairs:
            master.grad = parameter.grad.float()
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for parameter, master in pairs:
            parameter.data.copy_(master)


class Stochastic(Pure):
    """AdamW over float32 copies made for each step; parameters and state are rounded stochastically after it."""

    kept, num_steps = None, 0

    @torch.no_grad()
    def step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.num_steps += 1
        own = [*self.model.parameters()]
        sizes, works = [p.numel() for p in own], [nn.Parameter(p.float()) for p in own]
        optimizer = adamw(works)
        for number, (work, parameter) in enumerate(zip(works, own, strict=True)):
            work.grad = parameter.grad.float()
            if self.kept is not None:
                state = self.kept[number].items()
                optimizer.state[work] = {key: v.clone() if key == "step" else v.float() for key, v in state}
        optimizer.step()
        states = [optimizer.state[work] for work in works]
        numbers = RoundingNoise(CPU, SEED, self.num_steps).numbers(sum(sizes))
        for values in (works, *([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))):
            for value, noise in zip(values, next(numbers).split(sizes), strict=True):
                round_stochastically_(value.view(-1), noise)
        for work, parameter in zip(works, own, strict=True):
            parameter.copy_(work)
        self.kept = [{key: v if key == "step" else v.bfloat16() for key, v in state.items()} for state in states]


@pytest.mark.parametrize(
    ("mode", "kind", "init_scale"),
    [
        *(("pure_bf16", Pure, 1.0), ("bf16_sr", Stochastic, 1.0), ("master_bf16", Master, 1.0)),
        *(("master_fp16", Master, 1024.0), ("master_fp16", Master, OVERFLOWS)),
    ],
)
def test_a_mode_is_bitwise_the_loop_written_by_hand(mode, kind, init_scale):
    hand = Loop(mode, init_scale)
    mode_by_hand, scaler = kind(hand.model, hand.scaler), hand.scaler
    for _ in range(NUM_STEPS):
        inputs, classes = hand.batch()
        loss = F.cross_entropy(hand.model(inputs.to(hand.model.head.weight.dtype)).float(), classes)
        scaler.scale(loss).backward()
        hand.losses.append(loss.item())
        hand.scales.append(scaler.get_scale())
        mode_by_hand.step()
        hand.model.zero_grad()
    steps = (f"optimizer.lr={LR}", "scheduler=constant", f"trainer.steps={NUM_STEPS}", "trainer.max_grad_norm=1")
    assert_same(trained(*MLP, *settings(mode, init_scale), *steps), hand)


def of_mode(mode):
    return (*MLP, f"precision={mode}", "scheduler=cosine", "trainer.steps=9", "precision.init_scale=1048576")


@pytest.mark.parametrize(
    "pair",
    [
        *("fp32>bf16_sr", "fp32>master_bf16", "fp32>master_fp16", "amp_bf16>master_fp16", "pure_bf16>master_bf16"),
        *("bf16_sr>fp32", "master_bf16>fp32", "master_fp16>fp32", "master_fp16>master_bf16", "master_bf16>bf16_sr"),
    ],
)
def test_no_digit_of_a_weight_is_lost_if_both_modes_keep_it(pair, tmp_path):
    """Digits of master weights survive as parameters and the reverse; a step later nothing has jumped back."""
    before, after = pair.split(">")
    stopped = assemble(*of_mode(before), directory=tmp_path)
    stopped.train(StopAfter(5))
    going, _ = resumed(tmp_path, *of_mode(after))
    saved, taken = (
        [each.optimizer.state[p].get("master_weight", p).detach().clone() for p in each.built.model.parameters()]
        for each in (stopped, going)
    )
    for weight, other in zip(saved, taken, strict=True):
        assert torch.equal(weight.to(other.dtype), other)
    going.trainer.train_step()
    for weight, other in zip(saved, going.parameters(), strict=True):
        assert torch.allclose(weight.float(), other.float(), atol=0.02)


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16", "pure_bf16", "master_bf16", "master_fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_micro_batches_are_added_up_in_the_dtype_asked_for(mode, dtype):
    """The gradients of three micro-batches, each by itself and rounded as it comes, added one after the other."""
    several = (*of_mode(mode), "trainer.grad_accum_steps=3", "trainer.max_grad_norm=null", "precision.init_scale=1024")
    name = str(dtype).removeprefix("torch.")
    *_, taken = gradients_of(assemble(*several, f"trainer.accumulate_dtype={name}"))
    sums = None
    for number in range(3):
        training = assemble(*several)
        training.trainer.next_batch = number
        alone = [gradient.to(dtype) for gradient in gradients_of(training)[0]]
        sums = alone if sums is None else [(one + other).to(dtype) for one, other in zip(sums, alone, strict=True)]
    assert {gradient.dtype for gradient in taken} == {dtype}
    assert all(map(torch.equal, taken, sums))


def gradients_of(training):
    """The gradients after each micro-batch of a step, before the optimizer's step."""
    trainer, taken = training.trainer, []
    backward = trainer._backward

    def noted(*losses, inputs=None):
        backward(*losses, inputs=inputs)
        taken.append([parameter.grad.clone() for parameter in training.built.model.parameters()])

    trainer._backward = noted
    with trainer.precision.flags():
        trainer.train_step()
    return taken
