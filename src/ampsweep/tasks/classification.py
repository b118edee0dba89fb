"""Classification: one of several classes for each item."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_below_one
from ampsweep.precision import gradients
from ampsweep.tasks.base import at_least_float32, output_tensor


class Classification:
    """Cross-entropy between logits (B, num_classes, ...) and classes (B, ...), int64; evaluates accuracy too."""

    def __init__(self, label_smoothing: float = 0.0, output: str | None = None, gradient_penalty: float = 0.0) -> None:
        """Set the options of the loss; raise a ``ValueError`` for a value out of range.

        Args:
            label_smoothing: in [0, 1), as in ``torch.nn.CrossEntropyLoss``; applies to the evaluated loss too.
            output: name of the logits in the model's output; None if the output is the logits.
            gradient_penalty: weight in the training loss of ``parameter_gradient_norm``.
        """
        require_below_one(label_smoothing=label_smoothing)
        if not gradient_penalty >= 0:
            raise ValueError(f"gradient_penalty must not be negative, got {gradient_penalty}")
        self.label_smoothing, self.output, self.gradient_penalty = label_smoothing, output, gradient_penalty

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the mean cross-entropy over the batch, with the penalty if there is one."""
        inputs, classes = batch
        loss = self._cross_entropy(self._logits(model, inputs), classes)
        if not self.gradient_penalty:
            return loss
        norm = parameter_gradient_norm(loss, [p for p in model.parameters() if p.requires_grad])
        return loss + self.gradient_penalty * norm

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss``, without the penalty, and ``accuracy`` (0 to 1) over the items of the batch."""
        inputs, classes = batch
        logits = self._logits(model, inputs)
        accuracy = (logits.argmax(1) == classes).float().mean()
        return {"loss": self._cross_entropy(logits, classes), "accuracy": accuracy}, len(classes)

    def _logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        return output_tensor(model(inputs), self.output)

    def _cross_entropy(self, logits: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), classes, label_smoothing=self.label_smoothing)


def parameter_gradient_norm(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Compute the 2-norm of the gradients of a scalar loss with respect to all `parameters`, taken as one vector.

    Bitwise equal to "Gradient penalty" in https://pytorch.org/docs/stable/notes/amp_examples.html, except that its own
    gradient at zero is zero instead of NaN.
    """
    squares = [at_least_float32(gradient).pow(2).sum() for gradient in gradients(loss, parameters)]
    first, *others = squares
    return sum(others, first).clamp_min(torch.finfo(torch.float32).tiny).sqrt()
