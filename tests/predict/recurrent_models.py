"""Models of a user's own with recurrent layers."""

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Logits (B, T, vocab_size) of ids (B, T), by layers of `kind`: LSTM, GRU or RNN."""

    def __init__(
        self,
        kind: str = "LSTM",
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        batch_first: bool = True,
        projection: int = 0,
        bias: bool = True,
        packed: bool = False,
        width: int = 16,
        hidden: int = 32,
        vocab_size: int = 50,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        settings = {"bias": bias, "batch_first": batch_first, "dropout": dropout, "bidirectional": bidirectional}
        projected = {"proj_size": projection} if projection else {}
        self.layers: nn.RNNBase = getattr(nn, kind)(width, hidden, layers, **settings, **projected)
        self.head = nn.Linear((projection or hidden) * (1 + bidirectional), vocab_size)
        self.packed = packed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x if self.layers.batch_first else x.transpose(0, 1)
        if self.packed:
            lengths = torch.tensor([ids.shape[1] - item % 3 for item in range(len(ids))])
            first = self.layers.batch_first
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
            output, _ = nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=first)
        else:
            output = self.layers(x)[0]
        logits: Tensor = self.head(output)
        return logits if self.layers.batch_first else logits.transpose(0, 1)
