"""Two losses of one forward pass, and two optimizers that step after both."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.tasks.base import Turn, at_least_float32


class TwoLosses:
    """Classification and reconstruction of the inputs by a model that returns logits and values.

    Each loss has its own backward pass through the shared trunk, as in "Working with Multiple Models, Losses, and
    Optimizers" of https://pytorch.org/docs/stable/notes/amp_examples.html. One optimizer trains the model's
    ``decoder``, the other the ``trunk`` and the ``classifier``.
    """

    @property
    def turns(self) -> Sequence[Turn]:
        trains = {"classifier": ["trunk.*", "classifier.*"], "decoder": ["decoder.*"]}
        return (Turn(name="losses", loss=self.losses, trains=trains),)

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the mean cross-entropy, and the mean squared error of the reconstruction."""
        return self._outputs(model, batch)[0]

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss``, its part ``reconstruction``, and ``accuracy`` (0 to 1) over the items of the batch."""
        (classification, reconstruction), logits = self._outputs(model, batch)
        accuracy = (logits.argmax(-1) == batch[1]).float().mean()
        loss = classification + reconstruction
        return {"loss": loss, "reconstruction": reconstruction, "accuracy": accuracy}, len(batch[1])

    def _outputs(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        inputs, classes = batch
        logits, values = (at_least_float32(output) for output in model(inputs))
        reconstruction = F.mse_loss(values, at_least_float32(inputs.flatten(1)))
        return (F.cross_entropy(logits, classes), reconstruction), logits
