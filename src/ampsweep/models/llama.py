"""A decoder-only language model of Llama's architecture: A. Grattafiori et al. 2024, "The Llama 3 Herd of Models"
(arXiv:2407.21783), after H. Touvron et al. 2023, "LLaMA" (arXiv:2302.13971)."""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.argument_checks import require_positive
from ampsweep.models.activation_checkpointing import CheckpointedModel
from ampsweep.models.gpt import initialize


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: J. Su et al. 2021, "RoFormer" (arXiv:2104.09864), with Hugging Face's pairs (i, i + size / 2).

    The tables are float32 in every mode, and not a model's buffers, which a mode with low-precision parameters would
    cast. FSDP2's policy casts the tensors among a block's arguments, but not those inside an object.
    """

    cos: Tensor  # (T, size / 2)
    sin: Tensor

    @classmethod
    def of(cls, length: int, size: int, base: float, device: torch.device) -> Self:
        """Position t turns pair i of a head of ``size`` by t * base ** (-2i / size)."""
        pairs = torch.arange(0, size, 2, dtype=torch.float32, device=device)
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = positions.unsqueeze(1) * base ** (-pairs / size)
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x (..., T, size) in float32; the result has the dtype of x."""
        first, second = x.chunk(2, dim=-1)
        rotated = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(rotated, dim=-1).type_as(x)


class GroupedQueryAttention(nn.Module):
    """Causal self-attention on (B, T, hidden_size) in which several query heads share a head of keys and values:
    J. Ainslie et al. 2023, "GQA" (arXiv:2305.13245)."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.head_size = hidden_size // num_heads
        self.num_heads = (num_heads, num_kv_heads, num_kv_heads)
        self.qkv = nn.Linear(hidden_size, sum(self.num_heads) * self.head_size, bias=False)
        self.projection = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        # (B, T, all heads * size) -> (B, heads, T, size) of query, key and value
        heads = self.qkv(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        query, key, value = heads.split(self.num_heads, dim=1)
        query, key = rotation(query), rotation(key)
        # Repeated instead of `enable_gqa`: before torch 2.14 no memory-efficient CUDA kernel takes groups in float32,
        # so that fp32 alone would keep the scores (B, heads, T, T), and AMP would save what is the kernel's doing.
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return output


class SwiGLU(nn.Module):
    """N. Shazeer 2020, "GLU Variants Improve Transformer" (arXiv:2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.expansion = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.projection = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.projection(F.silu(self.gate(x)) * self.expansion(x))
        return output


class LlamaBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, intermediate_size: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.attention = GroupedQueryAttention(hidden_size, num_heads, num_kv_heads)
        self.feed_forward_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.feed_forward = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        output: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return output


class Llama(CheckpointedModel):
    """A decoder-only language model with tied embeddings; 16 layers of 2048, 32 heads, 8 of keys and values, 8192 wide
    in between, and 128256 ids are Llama 3.2 1B, without its rescaled frequencies for contexts beyond 8192 tokens.

    Normalization (B. Zhang and R. Sennrich 2019, "RMSNorm", arXiv:1910.07467) computes in float32 in every mode: under
    autocast its inputs, the residual stream, are float32, and ``nn.RMSNorm`` converts those of half precision inside.
    """

    def __init__(
        self,
        vocab_size: int,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        intermediate_size: int,
        rope_base: float = 500000.0,
    ) -> None:
        """Build and initialize the model; raise a ``ValueError`` for sizes out of range."""
        super().__init__()
        require_positive(
            vocab_size=vocab_size,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            intermediate_size=intermediate_size,
        )
        if hidden_size % (2 * num_heads):
            raise ValueError(f"hidden_size must be a multiple of 2 * num_heads, got {hidden_size} and {num_heads}")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        self.head_size, self.rope_base = hidden_size // num_heads, rope_base
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        sizes = (hidden_size, num_heads, num_kv_heads, intermediate_size)
        self.blocks = nn.ModuleList(LlamaBlock(*sizes) for _ in range(num_layers))
        self.norm = nn.RMSNorm(hidden_size, eps=1e-5)
        initialize(self, num_layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (B, T), int64, to logits (B, T, vocab_size) of each next id."""
        x = self.token_embedding(tokens)
        rotation = Rotation.of(tokens.shape[1], self.head_size, self.rope_base, tokens.device)
        for block in self.blocks:
            x = self.run(block, x, rotation)
        return F.linear(self.norm(x), self.token_embedding.weight)
