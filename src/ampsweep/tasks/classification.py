"""Classification: one of several classes for each item."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.precision import gradients
from ampsweep.tasks.base import at_least_float32, output_tensor


class Classification:
    """Cross-entropy between logits (B, num_classes, ...) and classes (B, ...), int64; evaluates accuracy too."""

    def __init__(self, label_smoothing: float = 0.0, output: str | None = None, gradient_penalty: float = 0.0) -> None:
        """``output`` names the logits in the model's output; None if the output is the logits. ``gradient_penalty``
        weights the 2-norm of all parameters' gradients, as one vector, in the training loss."""
        self.label_smoothing, self.output, self.gradient_penalty = label_smoothing, output, gradient_penalty

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the mean cross-entropy over the batch, with the penalty if there is one."""
        inputs, classes = batch
        loss = self._cross_entropy(output_tensor(model(inputs), self.output), classes)
        if not self.gradient_penalty:
            return loss
        # Bitwise "Gradient penalty" of https://pytorch.org/docs/stable/notes/amp_examples.html, except that
        # the gradient of the norm at zero is zero instead of NaN.
        parameters = [p for p in model.parameters() if p.requires_grad]
        first, *others = [at_least_float32(gradient).pow(2).sum() for gradient in gradients(loss, parameters)]
        norm = sum(others, first).clamp_min(torch.finfo(torch.float32).tiny).sqrt()
        return loss + self.gradient_penalty * norm

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss``, without the penalty, and ``accuracy`` (0 to 1) over the items of the batch."""
        inputs, classes = batch
        logits = output_tensor(model(inputs), self.output)
        accuracy = (logits.argmax(1) == classes).float().mean()
        return {"loss": self._cross_entropy(logits, classes), "accuracy": accuracy}, len(classes)

    def _cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), classes, label_smoothing=self.label_smoothing)
