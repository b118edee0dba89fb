"""A class for every pixel: the loss over dense logits, with the overlap of the classes as what counts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Segmentation:
    """Cross-entropy over pixels plus a soft Dice loss (Milletari et al. 2016); evaluates the pixels' accuracy."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, classes = batch
        logits = model(images).float()
        wanted = F.one_hot(classes, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
        found = logits.softmax(1)
        overlap = (found * wanted).sum((0, 2, 3))
        dice = 2 * overlap / (found.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1e-6)
        return F.cross_entropy(logits, classes) + 1 - dice.mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        images, classes = batch
        accuracy = (model(images).argmax(1) == classes).float().mean()
        return {"loss": self.loss(model, batch), "accuracy": accuracy}, len(images)
