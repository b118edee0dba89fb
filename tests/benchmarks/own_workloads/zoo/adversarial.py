"""A generator of digits against a judge of them: a GAN, and a Wasserstein GAN with gradient penalty."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.precision import gradients
from ampsweep.tasks.base import Turn

LATENT = 16


class Generator(nn.Sequential):
    """Noise (B, 16) to digits (B, 1, 8, 8)."""

    def __init__(self, width=64):
        super().__init__(
            nn.Linear(LATENT, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 64),
            nn.Sigmoid(),
            nn.Unflatten(1, (1, 8, 8)),
        )


class Judge(nn.Sequential):
    """Digits (B, 1, 8, 8) to scores (B,), high for real ones."""

    def __init__(self, width=64):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, 1), nn.Flatten(0))


class InTurn:
    """The judge learns first, then the generator."""

    def __init__(self):
        self.turns = (
            Turn(name="judge", loss=self.judges, trains={"judge": ["judge.*"]}),
            Turn(name="generator", loss=self.generates, trains={"generator": ["generator.*"]}),
        )


class Gan(InTurn):
    """The losses of Goodfellow et al. 2014 with the non-saturating one for the generator."""

    def judges(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, _ = batch
        with torch.no_grad():
            made = model["generator"](noise(real))
        return F.softplus(-model["judge"](real)).mean() + F.softplus(model["judge"](made)).mean()

    def generates(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.softplus(-model["judge"](model["generator"](noise(batch[0])))).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        return {"loss": self.judges(model, batch), "generator": self.generates(model, batch)}, len(batch[0])


class WassersteinGan(InTurn):
    """The losses of Gulrajani et al. 2017: scores, and a penalty on their slope between real and made."""

    def judges(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, _ = batch
        with torch.no_grad():
            made = model["generator"](noise(real)).to(real.dtype)
        share = torch.rand(len(real), 1, 1, 1, device=real.device)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = gradients(model["judge"](between).sum(), [between])
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        return model["judge"](made).mean() - model["judge"](real).mean() + 10.0 * penalty

    def generates(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -model["judge"](model["generator"](noise(batch[0]))).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        real, _ = batch
        distance = model["judge"](real).mean() - model["judge"](model["generator"](noise(real))).mean()
        return {"loss": -distance}, len(real)


def noise(like: Tensor) -> Tensor:
    return torch.randn(len(like), LATENT, device=like.device)
