"""Several models, losses and optimizers under one scaler, against loops written by hand as torch's examples are."""

import math

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, StopAfter, assemble, resumed
from torch import nn

from ampsweep.data.digits import Digits
from ampsweep.models.image_gan import ImageGAN
from ampsweep.models.two_headed import TwoHeaded

SEED, BATCH, NUM_STEPS = 5, 16, 8
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
GAN = ("model=gan_digits", "model.hidden_size=4", "model.latent_size=3", f"data.batch_size={BATCH}")
WGAN = (*GAN, "task=wgan_gp", "task.critic_steps=3")
TWO = ("model=two_headed", "model.hidden_size=24", f"data.batch_size={BATCH}")
ADAM = ("optimizer=adam", "optimizer.lr=1e-3", "trainer.max_grad_norm=null", f"trainer.steps={NUM_STEPS}")
OVERFLOWS = 2.0**21
"""A scale that is too large at first for float16 gradients."""


class ByHand:
    """The parts of such a loop."""

    def __init__(self, mode, model, init_scale):
        self.dtype, self.amp = DTYPES[mode], mode != "fp32"
        self.model = model
        self.data = Digits(val_fraction=0.2, batch_size=BATCH, seed=SEED, device=CPU)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=mode == "amp_fp16")
        self.next_batch = 0
        self.losses = []

    def optimizer(self, *modules):
        parameters = [parameter for module in modules for parameter in module.parameters()]
        return torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def batch(self):
        self.next_batch += 1
        return self.data.train_batch(self.next_batch - 1)

    def autocast(self):
        return torch.autocast("cpu", self.dtype, enabled=self.amp)


def noise(images):
    return torch.randn(len(images), 3)


def gan_by_hand(mode, init_scale):
    torch.manual_seed(SEED)
    hand = ByHand(mode, ImageGAN(image_size=8, in_channels=1, latent_size=3, hidden_size=4), init_scale)
    generator, discriminator, scaler = hand.model.generator, hand.model.discriminator, hand.scaler
    of_generator, of_discriminator = hand.optimizer(generator), hand.optimizer(discriminator)
    for _ in range(NUM_STEPS):
        real, _ = hand.batch()
        with hand.autocast():
            fake = generator(noise(real)).detach()
            scores = discriminator(real).float(), discriminator(fake).float()
            of_both = (F.softplus(-scores[0]) + F.softplus(scores[1])).mean()
        scaler.scale(of_both).backward()
        scaler.step(of_discriminator)
        real, _ = hand.batch()
        with hand.autocast():
            fooled = F.softplus(-discriminator(generator(noise(real))).float()).mean()
        of_generator.zero_grad()
        scaler.scale(fooled).backward()
        scaler.step(of_generator)
        of_discriminator.zero_grad()
        scaler.update()
        of_generator.zero_grad()
        hand.losses.append((of_both + fooled).item())
    return hand


def wgan_by_hand(mode, init_scale):
    torch.manual_seed(SEED)
    hand = ByHand(mode, ImageGAN(image_size=8, in_channels=1, latent_size=3, hidden_size=4), init_scale)
    generator, critic, scaler = hand.model.generator, hand.model.discriminator, hand.scaler
    of_generator, of_critic = hand.optimizer(generator), hand.optimizer(critic)
    for _ in range(NUM_STEPS):
        for turn in range(3):
            real, _ = hand.batch()
            with hand.autocast():
                fake = generator(noise(real)).detach()
                on_real, on_fake = critic(real).float().mean(), critic(fake).float().mean()
                share = torch.rand(len(real), 1, 1, 1)
                between = torch.lerp(real, fake.float(), share).requires_grad_()
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
        real, _ = hand.batch()
        with hand.autocast():
            fooled = -critic(generator(noise(real))).float().mean()
        scaler.scale(fooled).backward()
        scaler.step(of_generator)
        scaler.update()
        of_generator.zero_grad()
        of_critic.zero_grad()
        hand.losses.append((loss + fooled).item())
    return hand


def two_by_hand(mode, init_scale):
    torch.manual_seed(SEED)
    hand = ByHand(mode, TwoHeaded(in_features=64, hidden_size=24, out_features=10), init_scale)
    first, second = hand.optimizer(hand.model.trunk, hand.model.classifier), hand.optimizer(hand.model.decoder)
    for _ in range(NUM_STEPS):
        inputs, classes = hand.batch()
        with hand.autocast():
            logits, values = hand.model(inputs)
            of_classes = F.cross_entropy(logits, classes)
            of_values = F.mse_loss(values.float(), inputs.flatten(1))
        hand.scaler.scale(of_classes).backward(retain_graph=True)
        hand.scaler.scale(of_values).backward()
        hand.scaler.step(first)
        hand.scaler.step(second)
        hand.scaler.update()
        first.zero_grad()
        second.zero_grad()
        hand.losses.append((of_classes + of_values).item())
    return hand


BY_HAND = {GAN: gan_by_hand, WGAN: wgan_by_hand, TWO: two_by_hand}
NAMES = {GAN: "gan", WGAN: "wgan", TWO: "two optimizers"}


@pytest.mark.parametrize("workload", BY_HAND, ids=NAMES.get)
@pytest.mark.parametrize(
    ("mode", "init_scale"), [("fp32", 1.0), ("amp_bf16", 1.0), ("amp_fp16", 65536.0), ("amp_fp16", OVERFLOWS)]
)
def test_it_is_bitwise_the_loop_that_anyone_would_write(workload, mode, init_scale):
    hand = BY_HAND[workload](mode, init_scale)
    settings = (f"precision={mode}", f"precision.init_scale={init_scale:.1f}", f"seed={SEED}")
    training = assemble(*workload, *settings, *ADAM)
    assert training.train().status == "completed"
    expected = [pytest.approx(loss, rel=0, abs=0, nan_ok=True) for loss in hand.losses]
    assert [*training.column("train/loss").values()] == expected
    assert all(map(torch.equal, training.parameters(), hand.model.parameters()))
    if mode == "amp_fp16":
        assert training.trainer.precision.scale() == hand.scaler.get_scale()


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize("workload", BY_HAND, ids=NAMES.get)
def test_a_step_is_skipped_if_any_optimizer_skips_its_own(workload, fused):
    settings = ("precision=amp_fp16", f"precision.init_scale={OVERFLOWS:.1f}", "precision.growth_interval=2")
    training = assemble(*workload, *settings, *ADAM, f"optimizer.fused={fused}")
    trainer, counts, scales = training.trainer, {}, []
    update = trainer.precision.update

    def noting():
        scales.append(trainer.precision.scale().item())
        update()
        scales.append(trainer.precision.scale().item())

    trainer.precision.update = noting
    with trainer.instruments, trainer.precision.flags():
        for step in range(NUM_STEPS):
            scales.clear()
            trainer.train_step()
            counts[step] = any(after < before for before, after in zip(scales[::2], scales[1::2], strict=True))
            values = trainer.instruments.scale_values()
            assert values["amp/skipped_steps"] == sum(counts.values())
            assert values["amp/growth_tracker"] == trainer.precision.state_dict()["_growth_tracker"]
            assert int(trainer.instruments.applied_steps()) == step + 1 - sum(counts.values())
    assert sum(counts.values()) > 0


@pytest.mark.parametrize("settings", [("precision=amp_bf16",), ("precision=amp_fp16", "precision.init_scale=4194304")])
@pytest.mark.parametrize("workload", BY_HAND, ids=NAMES.get)
def test_it_goes_on_from_a_checkpoint_bitwise(workload, settings, tmp_path):
    overrides = (*workload, *settings, *ADAM, "scheduler=cosine", "trainer.grad_accum_steps=2")
    reference = assemble(*overrides)
    reference.train()
    assemble(*overrides, directory=tmp_path).train(StopAfter(5))
    training, notes = resumed(tmp_path, *overrides)
    training.train()
    assert notes == []
    for key in ("train/loss", "val/loss", "amp/scale", "amp/applied_steps"):
        assert training.column(key) == {step: one for step, one in reference.column(key).items() if step > 5}, key
    assert all(map(torch.equal, training.parameters(), reference.parameters()))


def test_each_turn_has_a_loss_of_its_own_in_the_row():
    training = assemble(*GAN, *ADAM)
    training.train()
    row = training.rows[0]
    parts = [row["train/loss/discriminator"], row["train/loss/generator"]]
    assert row["train/loss"] == pytest.approx(sum(parts))
    assert not any(key.startswith("train/loss/") for key in assemble(*TWO, *ADAM).rows)


def test_gradients_go_to_what_the_turn_trains_only():
    trainer = assemble(*GAN, *ADAM).trainer
    seen = []
    backward = trainer._backward

    def noting(*losses, inputs):
        backward(*losses, inputs=inputs)
        seen.append({name.split(".")[0] for name, one in trainer.model.named_parameters() if one.grad is not None})

    trainer._backward = noting
    trainer.train_step()
    assert seen == [{"discriminator"}, {"generator"}]


def test_every_optimizer_clips_by_itself():
    training = assemble(*TWO, *ADAM, "trainer.max_grad_norm=1e-3")
    trainer, norms = training.trainer, []

    def note(optimizer, *_):
        grads = [one.grad for group in optimizer.param_groups for one in group["params"]]
        norms.append(nn.utils.get_total_norm(grads).item())

    for optimizer in trainer.optimizers.values():
        optimizer.register_step_pre_hook(note)
    step = trainer.train_step()
    assert norms == pytest.approx([1e-3, 1e-3], rel=1e-3)
    assert step.grad_norm == pytest.approx(math.hypot(*(norm.item() for norm in step.grad_norms)))


def test_a_rate_of_its_own_is_the_optimizers():
    training = assemble(*TWO, *ADAM, "+optimizer.each.decoder.lr=0.5")
    rates = {name: one.param_groups[0]["lr"] for name, one in training.trainer.optimizers.items()}
    assert rates == {"classifier": 1e-3, "decoder": 0.5}


def test_an_epoch_is_shared_by_the_turns():
    training = assemble(*WGAN, *ADAM, "trainer.steps=null", "trainer.epochs=1")
    assert training.built.num_steps == training.built.data.num_train_batches // 4
