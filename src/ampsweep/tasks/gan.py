"""Generative adversarial training: a generator and a discriminator, each with an optimizer, under one scaler."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.precision import gradients
from ampsweep.tasks.base import Turn, at_least_float32


class Adversaries(Protocol):
    """A generator and a discriminator: called with noise, it generates images; ``discriminator`` scores images."""

    latent_size: int
    discriminator: nn.Module

    def noise(self, like: Tensor) -> Tensor:
        """Draw noise (B, latent_size) for as many images as ``like`` has."""

    def __call__(self, noise: Tensor) -> Tensor:
        """Generate an image from each noise vector."""


class GAN:
    """The non-saturating game of I. Goodfellow et al., "Generative Adversarial Nets", 2014.

    A step is a turn of the discriminator, then a turn of the generator, each with its own batch. Evaluation computes
    the energy distance between held-out images and as many generated images.
    """

    @property
    def turns(self) -> Sequence[Turn]:
        return (
            Turn(name="discriminator", loss=self.discriminator_loss, trains={"discriminator": ["discriminator.*"]}),
            Turn(name="generator", loss=self.generator_loss, trains={"generator": ["generator.*"]}),
        )

    def discriminator_loss(self, model: Adversaries, batch: tuple[Tensor, Any]) -> Tensor:
        """Compute the cross-entropy of classifying real and generated images."""
        real, _ = batch
        fake = model(model.noise(real)).detach()
        on_real, on_fake = (at_least_float32(model.discriminator(images)) for images in (real, fake))
        return (F.softplus(-on_real) + F.softplus(on_fake)).mean()

    def generator_loss(self, model: Adversaries, batch: tuple[Tensor, Any]) -> Tensor:
        """Compute the cross-entropy of classifying generated images as real."""
        return F.softplus(-at_least_float32(model.discriminator(model(model.noise(batch[0]))))).mean()

    @torch.no_grad()
    def evaluate(self, model: Adversaries, batch: tuple[Tensor, Any]) -> tuple[dict[str, Tensor], int]:
        """Compute as ``loss`` the energy distance between the images of the batch and as many generated images.

        The noise is always the same, and no random state is changed.
        """
        real = batch[0]
        noise = torch.randn(len(real), model.latent_size, generator=torch.Generator().manual_seed(0))
        fake = model(noise.to(device=real.device, dtype=real.dtype))
        return {"loss": energy_distance(real, fake)}, len(real)


class WassersteinGAN(GAN):
    """The critic of I. Gulrajani et al., "Improved Training of Wasserstein GANs", 2017, with its gradient penalty.

    A step is ``critic_steps`` turns of the critic (the model's discriminator), then a turn of the generator.
    """

    def __init__(self, critic_steps: int = 5, gradient_penalty: float = 10.0) -> None:
        self.critic_steps, self.gradient_penalty = critic_steps, gradient_penalty

    @property
    def turns(self) -> Sequence[Turn]:
        critic, generator = super().turns
        return (*[critic] * self.critic_steps, generator)

    def discriminator_loss(self, model: Adversaries, batch: tuple[Tensor, Any]) -> Tensor:
        """Compute the mean score of generated images minus the mean score of real images, plus the penalty.

        The penalty is the mean of (|g| - 1)^2, g the gradient of the score with respect to an image that is randomly
        interpolated between a real and a generated image.
        """
        real, _ = batch
        fake = model(model.noise(real)).detach()
        on_real, on_fake = (at_least_float32(model.discriminator(images)).mean() for images in (real, fake))
        share = torch.rand(len(real), 1, 1, 1, device=real.device, dtype=real.dtype)
        between = torch.lerp(real, fake.to(real.dtype), share).requires_grad_()
        (slope,) = gradients(model.discriminator(between).sum(), [between])
        norms = at_least_float32(slope).flatten(1).norm(dim=1)
        loss: Tensor = on_fake - on_real + self.gradient_penalty * (norms - 1).square().mean()
        return loss

    def generator_loss(self, model: Adversaries, batch: tuple[Tensor, Any]) -> Tensor:
        return -at_least_float32(model.discriminator(model(model.noise(batch[0])))).mean()


def energy_distance(some: Tensor, others: Tensor) -> Tensor:
    """Compute the energy distance of two samples (B, ...) of equal size, a float32 scalar, zero if they are the same.

    It equals 2 E|x - y| - E|x - x'| - E|y - y'| (G. Szekely and M. Rizzo, "Energy statistics", 2013).
    """
    x, y = (sample.flatten(1).float() for sample in (some, others))
    pairs = ((x, y), (x, x), (y, y))
    between, within_x, within_y = ((a.unsqueeze(1) - b.unsqueeze(0)).norm(dim=2).mean() for a, b in pairs)
    distance: Tensor = 2 * between - within_x - within_y
    return distance
