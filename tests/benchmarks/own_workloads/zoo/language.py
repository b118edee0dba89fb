"""Models of text, recurrent ones and one with experts; masked text (Devlin et al. 2019), and text as a stream."""

import random
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from zoo import SeededBatches


class Recurrent(nn.Module):
    """A language model of characters by LSTM or GRU: ids (B, T) to logits (B, T, vocab_size)."""

    def __init__(self, kind="LSTM", vocab_size=256, width=48, num_layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = getattr(nn, kind)(width, width, num_layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(ids))[0])


class MaskedText(SeededBatches):
    """Bytes of this project's own source with 15 % hidden; batches are dicts of what BERT takes."""

    MASK, IGNORED = 256, -100
    fingerprint = "masked text, first version"

    def __init__(self, batch_size, seed, device, seq_len=32):
        super().__init__(batch_size, seed, device)
        self.seq_len, self.tokens_per_batch = seq_len, batch_size * seq_len
        text = Path(__file__).read_bytes() * 8
        self.ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batch(self, generator):
        begins = torch.randint(len(self.ids) - self.seq_len, (self.batch_size,), generator=generator)
        ids = self.ids[begins[:, None] + torch.arange(self.seq_len)]
        hidden = torch.rand(ids.shape, generator=generator) < 0.15
        batch = {
            "input_ids": ids.masked_fill(hidden, self.MASK),
            "attention_mask": torch.ones_like(ids),
            "labels": ids.masked_fill(~hidden, self.IGNORED),
        }
        return {key: value.to(self.device) for key, value in batch.items()}


class Experts(nn.Module):
    """Sends each of the tokens (N, width) to the expert with the highest score (Shazeer et al. 2017)."""

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(num_experts)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            (mine,) = torch.nonzero(chosen == number, as_tuple=True)
            if len(mine):
                routed = expert(tokens[mine]) * weights[mine, None]
                mixed = mixed.index_add(0, mine, routed.to(mixed.dtype))
        return mixed


class MixtureOfExperts(nn.Module):
    """A language model of two positions' context: ids (B, T) to logits (B, T, vocab_size)."""

    def __init__(self, vocab_size=256, width=32, num_experts=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.before = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.experts = Experts(width, num_experts)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x + self.before(nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
        x = x + self.experts(self.norm(x).flatten(0, 1)).view_as(x)
        return self.head(x)


class Windows(IterableDataset):
    """Windows of the Python reference's chapters, shuffled by a buffer: bytes (seq_len,) and those that follow each."""

    def __init__(self, first, last, seq_len, buffer):
        self.chapters, self.seq_len, self.buffer = sorted(topics)[first:last], seq_len, buffer

    def __iter__(self):
        waiting = []
        for window in self.windows():
            waiting.append(window)
            if len(waiting) > self.buffer:
                yield waiting.pop(random.randrange(len(waiting)))
        yield from waiting

    def windows(self):
        for chapter in self.chapters:
            ids = torch.tensor([*topics[chapter].encode()])
            for first in range(0, len(ids) - self.seq_len, self.seq_len):
                window = ids[first : first + self.seq_len + 1]
                yield window[:-1], window[1:]
