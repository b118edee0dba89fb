"""Classification: one of several classes for each item."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_below_one
from ampsweep.tasks.base import at_least_float32


class Classification:
    """Cross-entropy between the model's logits (B, num_classes) and classes (B,), int64; evaluates accuracy too."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        """``label_smoothing`` in [0, 1) as in ``torch.nn.CrossEntropyLoss``; it counts in the evaluated loss too."""
        require_below_one(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the mean cross-entropy over the batch."""
        inputs, classes = batch
        return self._cross_entropy(model(inputs), classes)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss`` and ``accuracy`` (0 to 1) over the items of the batch."""
        inputs, classes = batch
        logits = model(inputs)
        accuracy = (logits.argmax(-1) == classes).float().mean()
        return {"loss": self._cross_entropy(logits, classes), "accuracy": accuracy}, len(classes)

    def _cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), classes, label_smoothing=self.label_smoothing)
