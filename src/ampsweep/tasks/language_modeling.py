"""Language modeling: the next token at every position."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.tasks.base import at_least_float32, output_tensor


class LanguageModeling:
    """Cross-entropy in nats per token between the model's logits (B, T, vocab_size) and the next ids (B, T), int64."""

    def __init__(self, output: str | None = None) -> None:
        """``output`` names the logits in the model's output; None if the output is the logits."""
        self.output = output

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, next_tokens = batch
        logits = at_least_float32(output_tensor(model(tokens), self.output))
        return F.cross_entropy(logits.flatten(0, 1), next_tokens.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], int]:
        return {"loss": self.loss(model, batch)}, batch[1].numel()
