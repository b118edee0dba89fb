"""Models of text: recurrent ones, and the masked text that BERT learns from (Devlin et al. 2019)."""

from pathlib import Path

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A language model of characters by LSTM or GRU: ids (B, T) to logits (B, T, vocab_size)."""

    def __init__(self, kind="LSTM", vocab_size=256, width=48, num_layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = getattr(nn, kind)(width, width, num_layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(ids))[0])


class MaskedText:
    """Bytes of this project's own source with 15 % hidden; batches are dicts of what BERT takes."""

    MASK, IGNORED = 256, -100
    num_train_batches = None
    fingerprint = "masked text, first version"

    def __init__(self, batch_size, seed, device, seq_len=32):
        self.batch_size, self.seed, self.device, self.seq_len = batch_size, seed, device, seq_len
        self.tokens_per_batch = batch_size * seq_len
        text = Path(__file__).read_bytes() * 8
        self.ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def train_batch(self, index):
        return self.masked(torch.Generator().manual_seed(1_000_003 * self.seed + index + 1))

    def val_batches(self):
        for number in range(2):
            yield self.masked(torch.Generator().manual_seed(2**40 + number))

    def masked(self, generator):
        begins = torch.randint(len(self.ids) - self.seq_len, (self.batch_size,), generator=generator)
        ids = self.ids[begins[:, None] + torch.arange(self.seq_len)]
        hidden = torch.rand(ids.shape, generator=generator) < 0.15
        batch = {
            "input_ids": ids.masked_fill(hidden, self.MASK),
            "attention_mask": torch.ones_like(ids),
            "labels": ids.masked_fill(~hidden, self.IGNORED),
        }
        return {key: value.to(self.device) for key, value in batch.items()}
