"""Several models, losses and optimizers under one scaler, against loops written by hand as torch's examples are."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from assembled import MLP, assemble, assert_resumes_bitwise, trained
from hand_loop import Loop, assert_same, settings
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.models.image_gan import ImageGAN
from ampsweep.models.two_headed import TwoHeaded
from ampsweep.tasks.base import Turn
from ampsweep.training.turns import trained_parts

BATCH, NUM_STEPS = 16, 8
GAN = ("model=gan_digits", "model.hidden_size=4", "model.latent_size=3", f"data.batch_size={BATCH}")
WGAN = (*GAN, "task=wgan_gp", "task.critic_steps=3")
TWO = ("model=two_headed", "model.hidden_size=24", f"data.batch_size={BATCH}", "trainer.max_grad_norm=0.1")
ADAM = ("trainer.max_grad_norm=null", "optimizer=adam", "optimizer.lr=1e-3", f"trainer.steps={NUM_STEPS}")


def adam(*modules):
    return torch.optim.Adam(nn.ModuleList(modules).parameters(), lr=1e-3, fused=True)


def wgan_by_hand(mode, init_scale):
    sizes = {"image_size": 8, "in_channels": 1, "latent_size": 3, "hidden_size": 4}
    hand = Loop(mode, init_scale, lambda: ImageGAN(**sizes))
    generator, critic, scaler = hand.model.generator, hand.model.discriminator, hand.scaler
    of_generator, of_critic = adam(generator), adam(critic)
    for _ in range(NUM_STEPS):
        for turn in range(3):
            real, _ = hand.batch()
            with hand.autocast():
                fake = generator(torch.randn(BATCH, 3)).detach()
                on_real, on_fake = critic(real).float().mean(), critic(fake).float().mean()
                between = torch.lerp(real, fake.float(), torch.rand(BATCH, 1, 1, 1)).requires_grad_()
                score = critic(between).sum()
            (scaled,) = torch.autograd.grad(scaler.scale(score), between, create_graph=True)
            slope = scaled * (1.0 / scaler.get_scale())
            with hand.autocast():
                loss = on_fake - on_real + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(of_critic)
            if turn < 2:
                scaler.update()
            of_critic.zero_grad()
        hand.batch()
        with hand.autocast():
            fooled = -critic(generator(torch.randn(BATCH, 3))).float().mean()
        scaler.scale(fooled).backward()
        scaler.step(of_generator)
        hand.scales.append(scaler.get_scale())
        scaler.update()
        hand.model.zero_grad()
        hand.losses.append((loss + fooled).item())
    return hand


def two_by_hand(mode, init_scale):
    hand = Loop(mode, init_scale, lambda: TwoHeaded(in_features=64, hidden_size=24, out_features=10))
    first, second = adam(hand.model.trunk, hand.model.classifier), adam(hand.model.decoder)
    for _ in range(NUM_STEPS):
        inputs, classes = hand.batch()
        with hand.autocast():
            logits, values = hand.model(inputs)
            of_classes = F.cross_entropy(logits, classes)
            of_values = F.mse_loss(values.float(), inputs.flatten(1))
        hand.scaler.scale(of_classes).backward(retain_graph=True)
        hand.scaler.scale(of_values).backward()
        for optimizer in (first, second):
            hand.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)
            hand.scaler.step(optimizer)
        hand.scales.append(hand.scaler.get_scale())
        hand.scaler.update()
        hand.model.zero_grad()
        hand.losses.append((of_classes + of_values).item())
    return hand


@pytest.mark.parametrize(
    ("workload", "by_hand", "mode", "init_scale"),
    [
        *((WGAN, wgan_by_hand, mode, scale) for mode, scale in (("amp_bf16", 1.0), ("amp_fp16", 2.0**28))),
        *((TWO, two_by_hand, mode, scale) for mode, scale in (("fp32", 1.0), ("amp_fp16", 2.0**16))),
        (TWO, two_by_hand, "amp_fp16", 2.0**21),  # too large at first
    ],
)
def test_a_training_is_bitwise_the_loop_that_anyone_would_write(workload, by_hand, mode, init_scale):
    assert_same(trained(*ADAM, *workload, *settings(mode, init_scale)), by_hand(mode, init_scale))


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize("workload", [WGAN, TWO, (*MLP, "optimizer=adamw"), (*MLP, "optimizer=sgd")])
def test_a_step_is_skipped_if_any_optimizer_skips_its_own(workload, fused):
    scaler = ("precision=amp_fp16", "precision.init_scale=1e10", "precision.growth_interval=4")
    rate = (f"optimizer.fused={fused}", "scheduler=cosine", "trainer.steps=40")
    training = assemble(*ADAM, *workload, *scaler, *rate)
    trainer, num_skipped, scales = training.trainer, 0, []
    update = trainer.precision.update

    def noting():
        before = trainer.precision.scale().item()
        update()
        scales.append((before, trainer.precision.scale().item()))

    trainer.precision.update = noting
    with trainer.instruments, trainer.precision.flags():
        for step in range(40):
            scales.clear()
            parameters = training.parameters()
            trainer.train_step(norm_wanted=step % 2 == 0)
            rate = float(trainer.schedule.learning_rate())  # a function of applied steps
            assert rate == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * (step - num_skipped) / 40)), rel=1e-6)
            skipped = [after < before for before, after in scales]
            num_skipped += any(skipped)
            if len(trainer.optimizers) == 1 or not any(skipped):
                assert all(map(torch.equal, parameters, training.parameters())) == any(skipped)
            assert int(trainer.instruments.applied_steps()) == step + 1 - num_skipped
            trainer.instruments.end_row()
            values = trainer.instruments.rows()[-1]
            assert (values["amp/skipped_steps"], values["amp/applied_steps"]) == (num_skipped, step + 1 - num_skipped)
            assert values["amp/scale"] == scales[-1][0]
            assert values["amp/growth_tracker"] == trainer.precision.state_dict()["_growth_tracker"]
    assert 5 < num_skipped < 40


@pytest.mark.parametrize("workload", [WGAN, TWO])
def test_a_training_resumes_bitwise(workload, tmp_path):
    settings = ("precision=amp_fp16", "precision.init_scale=4194304", "scheduler=cosine", "trainer.grad_accum_steps=2")
    assert_resumes_bitwise(tmp_path, *ADAM, *workload, *settings)


def test_each_turn_trains_its_own_and_has_a_loss_in_the_row():
    training, seen = assemble(*ADAM, *GAN), []

    def note(*_):
        parameters = training.built.model.named_parameters()
        seen.append({name.split(".")[0] for name, parameter in parameters if parameter.grad is not None})

    for optimizer in training.built.optimizers.values():
        optimizer.register_step_pre_hook(note)
    training.train()
    assert seen[:2] == [{"discriminator"}, {"generator"}]
    row = training.rows[0]
    assert row["train/loss"] == pytest.approx(row["train/loss/discriminator"] + row["train/loss/generator"])
    assert not any(key.startswith("train/loss/") for row in trained(*ADAM, *TWO).rows for key in row)
    epoch = assemble(*ADAM, *WGAN, "trainer.steps=null", "trainer.epochs=1").built
    assert epoch.num_steps == epoch.data.num_train_batches // 4, "an epoch is shared by the turns"


def test_the_norm_of_all_gradients_is_that_of_one_vector_and_rates_differ():
    trainer = assemble(*ADAM, *TWO, "+optimizer.each.decoder.lr=0.5").trainer
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in trainer.optimizers.items()}
    assert rates == {"classifier": 1e-3, "decoder": 0.5}
    step = trainer.train_step()
    assert step.grad_norm == pytest.approx(math.hypot(*(norm.item() for norm in step.grad_norms)))


def turn(name, **trains):
    return Turn(name=name, loss=abs, trains=trains)


def test_turns_that_cannot_be_taken_are_refused():
    judge, maker = turn("judge", judge=["judge.*"]), turn("maker", maker=["maker.*", "head.*"])
    assert trained_parts((judge, judge, maker)) == {"judge": ["judge.*"], "maker": ["maker.*", "head.*"]}
    other = "the optimizer x trains other parameters in the turn b than before"
    for turns, sentence in (
        ((), "the task has no turns"),
        (3, "a task's turns must be a list of ampsweep.tasks.base.Turn, got int"),
        ((turn("a"),), "the turn a of the task trains nothing"),
        ((turn("a", x="x.*"),), "the turn a of the task trains x by 'x.*', which is not a list"),
        ((turn("a", x=["*"]), turn("a", x=["x"])), "the task has two different turns with the name a"),
        ((turn("a", x=["*"]), turn("b", x=["x"])), other),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
            trained_parts(turns)
