"""The task of models that compute their loss themselves."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ModelLoss:
    """The loss that the model returns: a scalar, the first item of a tuple or list, ``["loss"]`` or ``.loss``.

    A mapping is passed as keyword arguments. A pair (inputs, targets) is passed by position or under the given names;
    with ``targets="inputs"`` the inputs are also the targets. Hugging Face language models, which shift the labels
    themselves, take ``ModelLoss(input_argument="input_ids", target_argument="labels", targets="inputs")``.
    """

    def __init__(
        self, input_argument: str | None = None, target_argument: str | None = None, targets: str = "targets"
    ) -> None:
        """Set the names of the arguments; an argument without a name is passed by position."""
        if targets not in ("targets", "inputs"):
            raise ValueError(f'targets must be "targets" or "inputs", got {targets!r}')
        if input_argument is not None and target_argument is None:
            raise ValueError(f"target_argument must be named when input_argument is, got {input_argument!r} and None")
        self.input_argument, self.target_argument, self.targets = input_argument, target_argument, targets

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Compute the model's own mean loss; raise a ``ValueError`` for an output without a scalar loss."""
        if isinstance(batch, Mapping):
            return _loss_of(model(**batch))
        inputs, targets = batch
        targets = inputs if self.targets == "inputs" else targets
        if self.target_argument is None:
            return _loss_of(model(inputs, targets))
        if self.input_argument is None:
            return _loss_of(model(inputs, **{self.target_argument: targets}))
        return _loss_of(model(**{self.input_argument: inputs, self.target_argument: targets}))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], int]:
        """Compute ``loss`` over the items (the first dimension) of the batch."""
        first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
        return {"loss": self.loss(model, batch)}, len(first)


def _loss_of(output: Any) -> Tensor:
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, (tuple, list)):
        loss = output[0] if output else None
    else:
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"the model must return its loss, or an object that contains it, got {type(output).__name__} without a loss"
        )
    if loss.dim() != 0:
        raise ValueError(f"the model's loss must be a scalar, got shape {tuple(loss.shape)}")
    return loss
