"""Regression: real values for each item."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.tasks.base import at_least_float32, output_tensor


class Regression:
    """Mean squared error between the model's outputs and targets of the same shape (B, ...)."""

    def __init__(self, output: str | None = None) -> None:
        """``output`` names the values in the model's output; None if the output is the values."""
        self.output = output

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the mean over all values; raise a ``ValueError`` for unequal shapes, which torch would broadcast."""
        inputs, targets = batch
        outputs = output_tensor(model(inputs), self.output)
        if outputs.shape != targets.shape:
            raise ValueError(
                f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}; "
                "regression needs the same"
            )
        return F.mse_loss(at_least_float32(outputs), at_least_float32(targets))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        return {"loss": self.loss(model, batch)}, len(batch[1])
