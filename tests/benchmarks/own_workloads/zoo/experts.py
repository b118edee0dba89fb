"""A mixture of experts with routing by the data (Shazeer et al. 2017; one expert a token: Fedus et al. 2022)."""

import torch
from torch import Tensor, nn


class Experts(nn.Module):
    """Sends each of the tokens (N, width) to the expert with the highest score; unused experts compute nothing."""

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
