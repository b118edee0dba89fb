"""An autoencoder whose code is classified, too: two heads, two losses, two optimizers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.tasks.base import Turn


class Autoencoder(nn.Module):
    """Digits (B, 1, 8, 8) to their copies and to logits (B, 10), by way of a code (B, 12)."""

    def __init__(self, width=64, size=12):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, size))
        self.decoder = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Linear(width, 64), nn.Unflatten(1, (1, 8, 8))
        )
        self.head = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        code = self.encoder(images)
        return {"copies": self.decoder(code), "logits": self.head(code)}


class CopyAndName:
    """The copies' squared error and the logits' cross-entropy; both reach the encoder through one graph."""

    def __init__(self):
        trains = {"autoencoder": ["encoder.*", "decoder.*"], "head": ["head.*"]}
        self.turns = (Turn(name="both", loss=self.losses, trains=trains),)

    def losses(self, model: Autoencoder, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, classes = batch
        made = model(images)
        return F.mse_loss(made["copies"], images), F.cross_entropy(made["logits"], classes)

    @torch.no_grad()
    def evaluate(self, model: Autoencoder, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        copied, named = self.losses(model, batch)
        return {"loss": copied + named, "copied": copied, "named": named}, len(batch[0])
