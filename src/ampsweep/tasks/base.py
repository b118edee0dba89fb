"""What a step computes."""

from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """Turns a model and a batch into a loss. The caller sets training or evaluation mode and autocast."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss over the batch, a scalar attached to the graph."""

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], int]:
        """Detached scalar means over the batch, among them ``loss``, and how many items they average over.

        The values stay on the device: reading them is left to the caller, because it makes the host wait.
        """
