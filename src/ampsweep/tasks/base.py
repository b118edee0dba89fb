"""The protocol of tasks, and the precision that their losses are computed in."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Task(Protocol):
    """A loss, computed from a model and a batch. The caller sets training or evaluation mode and autocast."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Compute the mean loss over the batch, a scalar attached to the graph."""

    def evaluate(self, model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], int]:
        """Compute detached scalar means over the batch, among them ``loss``, and the number of items averaged over.

        The values stay on the device; reading them is left to the caller, because it makes the host wait.
        """


def at_least_float32(output: Tensor) -> Tensor:
    """Cast a model's half-precision output to float32; float32 and wider stay as they are.

    Losses are sums over many values, and bfloat16 would round the result to 3 digits, coarser than the gaps that a
    comparison looks for. Under autocast torch's own losses do the same.
    """
    if output.dtype == torch.float32:  # the usual case, in every step
        return output
    return output.to(torch.promote_types(output.dtype, torch.float32))
