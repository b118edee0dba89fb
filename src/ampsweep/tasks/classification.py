"""Classification: one of several classes for each item."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_below_one
from ampsweep.tasks.base import at_least_float32
from ampsweep.tasks.output import output_tensor


class Classification:
    """Cross-entropy between the model's logits (B, num_classes) and classes (B,), int64; evaluates accuracy too."""

    def __init__(self, label_smoothing: float = 0.0, output: str | None = None) -> None:
        """Set what the loss is made of.

        Args:
            label_smoothing: in [0, 1), as in ``torch.nn.CrossEntropyLoss``; it counts in the evaluated loss too.
            output: names the logits in what the model returns; None: it returns the logits themselves.

        Raises:
            ValueError: ``label_smoothing`` lies outside [0, 1).
        """
        require_below_one(label_smoothing=label_smoothing)
        self.label_smoothing, self.output = label_smoothing, output

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the mean cross-entropy over the batch."""
        inputs, classes = batch
        return self._cross_entropy(output_tensor(model(inputs), self.output), classes)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss`` and ``accuracy`` (0 to 1) over the items of the batch."""
        inputs, classes = batch
        logits = output_tensor(model(inputs), self.output)
        accuracy = (logits.argmax(-1) == classes).float().mean()
        return {"loss": self._cross_entropy(logits, classes), "accuracy": accuracy}, len(classes)

    def _cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), classes, label_smoothing=self.label_smoothing)
