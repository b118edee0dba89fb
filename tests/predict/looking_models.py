"""Models of a user's own that look at masks, lengths and positions."""

import torch
from torch import Tensor, nn


class Looking(nn.Module):
    """Logits (B, T, vocab_size) of ids (B, T); what it computes depends on values that the host knows."""

    def __init__(self, looks_at: str, vocab_size: int = 256, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
        self.looks_at = getattr(self, looks_at)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.looks_at(ids, self.embedding(ids)))
        return logits

    def mask(self, ids: Tensor, x: Tensor) -> Tensor:
        """Hides nothing where there is nothing to hide."""
        hidden = ids >= 256
        return x if not hidden.any() else x.masked_fill(hidden[..., None], 0)

    def changed_mask(self, ids: Tensor, x: Tensor) -> Tensor:
        """Hides the first position, by a change in place of another view of the mask."""
        hidden = torch.zeros_like(ids, dtype=torch.bool)
        hidden[:, 0].fill_(True)
        return x if not hidden.view(-1).any() else x.masked_fill(hidden[..., None], 0)

    def positions(self, ids: Tensor, x: Tensor) -> Tensor:
        """Rotates only where positions follow each other."""
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        return x if bool((positions.diff(dim=1) == 1).all()) else x.roll(1, 1)

    def places(self, ids: Tensor, x: Tensor) -> Tensor:
        """Takes the even ids out, as many as there are."""
        (items, times) = torch.nonzero(ids % 2 == 0, as_tuple=True)
        return x + x[items, times].mean(0)

    def drawn(self, ids: Tensor, x: Tensor) -> Tensor:
        """Looks at what was drawn, which no host knows."""
        return x if torch.randint(2, ()).bool() else 2 * x

    def overwritten(self, ids: Tensor, x: Tensor) -> Tensor:
        """Looks at a mask that the model's own values have changed."""
        hidden = torch.zeros_like(ids, dtype=torch.bool)
        hidden[:, :] = x[..., 0] > 0
        return x if hidden.any() else 2 * x
