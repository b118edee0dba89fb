"""Norms of a loss's gradients, to be penalized in that loss: backward then differentiates a backward pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ampsweep.precision import gradients
from ampsweep.tasks.base import at_least_float32


def parameter_gradient_norm(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Compute the 2-norm of the gradients of a scalar loss with respect to all `parameters`, taken as one vector.

    It is bitwise that of "Gradient penalty" in https://pytorch.org/docs/stable/notes/amp_examples.html, but for
    gradients that are all zero: there its own gradient is zero, and not NaN.
    """
    squares = [at_least_float32(gradient).pow(2).sum() for gradient in gradients(loss, parameters)]
    first, *others = squares
    return sum(others, first).clamp_min(torch.finfo(torch.float32).tiny).sqrt()


def input_gradient_norm(loss: Tensor, inputs: Tensor) -> Tensor:
    """Compute the mean over the items of a batch of the 2-norm of the gradient of an item's loss by its inputs.

    The norm of double backpropagation (Drucker and LeCun, 1992, https://doi.org/10.1109/72.165600, who square it).

    Args:
        loss: the mean of the losses of the items, each of which depends on the inputs of its item alone.
        inputs: (B, ...), with `requires_grad`.
    """
    (of_mean,) = gradients(loss, [inputs])
    of_items = at_least_float32(of_mean) * len(inputs)
    norms: Tensor = torch.linalg.vector_norm(of_items.flatten(1), dim=1)
    return norms.mean()
