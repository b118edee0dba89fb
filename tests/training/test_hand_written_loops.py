"""The suite's figures are bitwise those of a loop that anyone would write by hand from torch's own parts."""

import math

import pytest
import torch
import torch.nn.functional as F
from assembled import MLP, assemble, assert_resumes_bitwise, own, resumed, trained
from hand_loop import MODES, OVERFLOWS, assert_same, by_hand, settings
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.training.components.instantiate import locate

LR, NUM_STEPS, HEAD = 3e-3, 12, "precision.fp32_modules=[head]"


def cosine(applied):
    return 0.5 * (1 + math.cos(math.pi * (applied / NUM_STEPS)))


@pytest.mark.parametrize(
    ("accumulate", "max_norm", "max_value"), [(1, 1.0, None), (3, 0.05, 0.003), (2, None, 0.003)], ids=str
)
@pytest.mark.parametrize(("mode", "init_scale"), MODES)
def test_accumulation_clipping_and_schedule(mode, init_scale, accumulate, max_norm, max_value):
    """Where the scale overflows, clipping by value makes infinite gradients finite, and yet the step is skipped."""
    peak = torch.tensor(LR) if mode == "amp_fp16" else LR  # on the device, where steps are counted there

    def clip(parameters):
        if max_value is not None:
            nn.utils.clip_grad_value_(parameters, max_value)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)

    def set_rate(optimizer, applied):
        optimizer.param_groups[0]["lr"] = peak * cosine(applied)

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=peak, weight_decay=0.01, fused=True)

    parts = {"accumulate": accumulate, "clip": clip, "set_rate": set_rate}
    hand = by_hand(mode, adamw, steps=NUM_STEPS, init_scale=init_scale, **parts)
    limits = {"max_grad_norm": max_norm, "max_grad_value": max_value}
    training = trained(
        *MLP, *settings(mode, init_scale), "optimizer=adamw", f"optimizer.lr={LR}", "scheduler=cosine",
        f"trainer.steps={NUM_STEPS}", f"trainer.grad_accum_steps={accumulate}",
        *(f"trainer.{key}={'null' if limit is None else limit}" for key, limit in limits.items()),
    )  # fmt: skip
    assert_same(training, hand)


def test_forward_and_loss_are_under_autocast_and_backward_is_not():
    training, seen = assemble(*MLP, "precision=amp_bf16", "trainer.steps=1"), {}
    model, loss = training.built.model, training.built.task.loss
    is_on = lambda: torch.is_autocast_enabled("cpu")  # noqa: E731
    model.register_forward_hook(lambda *_: seen.update(forward=is_on()))
    next(model.parameters()).register_hook(lambda _: seen.update(backward=is_on()))
    training.use_loss(lambda model, batch: seen.update(loss=is_on()) or loss(model, batch))
    training.trainer.train_step()
    assert seen == {"forward": True, "loss": True, "backward": False}


def penalized(model, batch, autocast, scaler):
    """The example "Gradient penalty" of torch's AMP examples."""
    with autocast():
        loss = F.cross_entropy(model(batch[0]), batch[1])
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inverse = 1.0 / scaler.get_scale()
    gradients = [p * inverse for p in scaled]
    with autocast():
        norm = 0
        for gradient in gradients:
            norm += gradient.pow(2).sum()
        return loss + 0.5 * norm.sqrt()


PENALTY = (*MLP, "task.gradient_penalty=0.5", "optimizer=sgd", "optimizer.lr=0.01", "trainer.max_grad_norm=null")


@pytest.mark.parametrize(("mode", "init_scale", "accumulate"), [(*mode, 1 + n % 2) for n, mode in enumerate(MODES)])
def test_a_gradient_penalty(mode, init_scale, accumulate):
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.01, fused=True)  # noqa: E731
    hand = by_hand(mode, sgd, steps=14, init_scale=init_scale, loss=penalized, accumulate=accumulate)
    steps = ("trainer.steps=14", f"trainer.grad_accum_steps={accumulate}")
    assert_same(trained(*PENALTY, *settings(mode, init_scale), *steps), hand)


def test_a_penalized_training_resumes_bitwise(tmp_path):
    assert_resumes_bitwise(tmp_path, *PENALTY, *settings("amp_fp16", OVERFLOWS), "trainer.steps=12")


HERE = [f"HERE.{name}" for name in ("WithAutocastable", "WithFloat32", "Decorated", "DecoratedOff", "Region")]
ON_CUDA = [f"ON_CUDA.{name}" for name in ("Decorated", "DecoratedOff", "Region")]


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "amp_fp16") for name in (*HERE, *ON_CUDA)), (HERE[-1], "amp_bf16"), (HERE[0], "fp32")]
)
def test_a_model_that_uses_autocast_itself(name, mode, seen):
    """Custom autograd functions, decorators and regions, for this device and for another."""
    make_model = lambda: locate("model", {"_target_": f"autocast_users.{name}"})()  # noqa: E731
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True)  # noqa: E731
    clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)  # noqa: E731
    hand = by_hand(mode, sgd, steps=4, init_scale=1024.0, make_model=make_model, clip=clip)
    dtypes = [*seen]
    seen.clear()
    sgd = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0", "trainer.max_grad_norm=1", "trainer.steps=4")
    assert_same(trained(*own("autocast_users", name), *settings(mode, 1024.0), *sgd), hand)
    assert seen[: len(dtypes)] == dtypes


def test_modules_kept_in_float32_are_a_subregion_by_hand(tmp_path):
    settings = (*MLP, "precision=amp_fp16", "trainer.steps=6", "precision.init_scale=1024")
    training, by_hand, plain = trained(*settings, HEAD), assemble(*settings), trained(*settings)
    head = by_hand.built.model.head

    def subregion(hidden, forward=head.forward):
        with torch.autocast("cpu", enabled=False):
            return forward(hidden.float())

    head.forward = subregion
    by_hand.train()
    assert training.column("train/loss") == by_hand.column("train/loss") != plain.column("train/loss")
    assert training.instruments.proof().fp32_module_flops.keys() == {"float32"}
    others, _ = resumed(training.keep(tmp_path), *MLP, "trainer.steps=8")
    assert all(map(torch.equal, others.parameters(), by_hand.parameters())), "its checkpoint fits others"
    with pytest.raises(UserError, match="there are blocks, head"):
        assemble(*MLP, "precision.fp32_modules=[haed]")
