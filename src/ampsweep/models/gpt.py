"""GPT-2 in plain torch: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", after nanoGPT."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_below_one, require_positive
from ampsweep.models.activation_checkpointing import CheckpointedModel


class Attention(nn.Module):
    """Causal multi-head self-attention on (B, T, hidden_size)."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.projection = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        # (B, T, 3 * heads * size) -> three of (B, heads, T, size)
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        output: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Two linear layers, four times as wide in between, with GPT-2's tanh approximation of GELU."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.expansion = nn.Linear(hidden_size, 4 * hidden_size)
        self.projection = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.projection(F.gelu(self.expansion(x), approximate="tanh"))
        return output


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads, dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden_size)
        self.feed_forward = FeedForward(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        output: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return output


class GPT(CheckpointedModel):
    """A decoder-only language model with tied embeddings; 12 layers of 768, 12 heads, 50257 ids are GPT-2 124M."""

    def __init__(
        self, vocab_size: int, seq_len: int, num_layers: int, hidden_size: int, num_heads: int, dropout: float = 0.0
    ) -> None:
        """Build and initialize the model; raise a ``ValueError`` for sizes or dropout out of range."""
        super().__init__()
        require_positive(
            vocab_size=vocab_size, seq_len=seq_len, num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads
        )
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size must be a multiple of num_heads, got {hidden_size} and {num_heads}")
        require_below_one(dropout=dropout)
        self.seq_len = seq_len
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = nn.Embedding(seq_len, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        initialize(self, num_layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (B, T), int64 with T <= seq_len, to logits (B, T, vocab_size) of each next id."""
        length = tokens.shape[1]
        if length > self.seq_len:
            raise ValueError(f"the model holds {self.seq_len} positions (model.seq_len), got {length} tokens")
        positions = torch.arange(length, device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = self.run(block, x)
        return F.linear(self.norm(x), self.token_embedding.weight)


def initialize(model: nn.Module, num_layers: int) -> None:
    """Initialize as N(0, 0.02), scaled by 1 / sqrt(number) for projections into the residual stream."""
    residual_std = 0.02 / math.sqrt(2 * num_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=residual_std if name.endswith("projection") else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
