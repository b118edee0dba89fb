"""Transformers as the sources of the measurements wrote them: BERT, GPT-2, OPT and one from scratch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class OwnLayerNorm(nn.Module):
    """Layer norm out of elementwise operators, as tutorials write it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(var + 1e-5)) + self.shift


def own_gelu(x: Tensor) -> Tensor:
    """GELU's tanh approximation out of elementwise operators (also Hugging Face's `gelu_new`)."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@dataclass(frozen=True)
class Transformer:
    """The sizes of a transformer, and how its source computes it."""

    vocab: int
    positions: int
    hidden: int
    layers: int
    heads: int
    feed_forward: int = 0  # 4 * hidden
    probabilities: Callable[..., Tensor] | None = None  # of attention; None: `F.scaled_dot_product_attention`
    activation: Callable[[Tensor], Tensor] = F.gelu
    norm: Callable[[int], nn.Module] = nn.LayerNorm
    norm_first: bool = False
    joint: bool = False  # one projection for query, key and value
    qkv_bias: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    types: int = 0  # of tokens: 2 for BERT's segments


def bert(query: Tensor, key: Tensor, padding: Tensor) -> Tensor:
    return (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + padding).softmax(-1)


def gpt2(query: Tensor, key: Tensor, causal: Tensor, padding: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
    scores = torch.where(causal, scores, lowest)
    return (scores if padding is None else scores + padding).softmax(-1).type(query.dtype)


def opt(query: Tensor, key: Tensor, padding: Tensor) -> Tensor:
    scores: Tensor = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + padding
    return torch.max(scores, scores.new_full([], torch.finfo(scores.dtype).min)).softmax(-1)


def from_scratch(query: Tensor, key: Tensor, causal: Tensor) -> Tensor:
    scores: Tensor = (query @ key.transpose(-1, -2)).masked_fill_(causal, -math.inf)
    return (scores / math.sqrt(query.shape[-1])).softmax(-1)


class Attention(nn.Module):
    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.sizes = sizes
        widths = [3 * sizes.hidden] if sizes.joint else [sizes.hidden] * 3
        self.projections = nn.ModuleList(nn.Linear(sizes.hidden, width, sizes.qkv_bias) for width in widths)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor, *masks: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        found = [projection(x) for projection in self.projections]
        if self.sizes.joint:
            found = [*found[0].split(hidden, dim=2)]
        query, key, value = (part.view(batch, length, self.sizes.heads, -1).transpose(1, 2) for part in found)
        if self.sizes.probabilities is None:
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=self.sizes.dropout, is_causal=True)
        else:
            mixed = F.dropout(self.sizes.probabilities(query, key, *masks), self.sizes.attention_dropout) @ value
        output: Tensor = self.output(mixed.transpose(1, 2).contiguous().view(batch, length, hidden))
        return output


class Layer(nn.Module):
    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        wide = sizes.feed_forward or 4 * sizes.hidden
        self.sizes, self.attention = sizes, Attention(sizes)
        self.up, self.down = nn.Linear(sizes.hidden, wide), nn.Linear(wide, sizes.hidden)
        self.first, self.second = sizes.norm(sizes.hidden), sizes.norm(sizes.hidden)

    def forward(self, x: Tensor, *masks: Tensor) -> Tensor:
        drop = partial(F.dropout, p=self.sizes.dropout)
        if self.sizes.norm_first:
            x = x + drop(self.attention(self.first(x), *masks))
            return x + drop(self.feed_forward(self.second(x)))
        x = self.first(drop(self.attention(x, *masks)) + x)
        return self.second(drop(self.feed_forward(x)) + x)  # type: ignore[no-any-return]

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.down(self.sizes.activation(self.up(x)))  # type: ignore[no-any-return]


class Body(nn.Module):
    """Embeddings and layers; GPT's final norm."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.sizes, self.checkpoints = sizes, False
        self.tokens, self.positions = (nn.Embedding(n, sizes.hidden) for n in (sizes.vocab, sizes.positions))
        self.types = nn.Embedding(sizes.types, sizes.hidden) if sizes.types else None
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = sizes.norm(sizes.hidden)

    def forward(self, ids: Tensor, *masks: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids))
        x = F.dropout(x if self.sizes.norm_first else self.norm(x), self.sizes.dropout)
        masks = tuple(mask.to(x.dtype) if mask.is_floating_point() else mask for mask in masks)
        for layer in self.layers:
            x = checkpoint(layer, x, *masks, use_reentrant=True) if self.checkpoints else layer(x, *masks)
        return self.norm(x) if self.sizes.norm_first else x


class LanguageModel(nn.Module):
    """A body and a head over the vocabulary; BERT's has a transform before it and predicts the next sentence, too."""

    def __init__(self, sizes: Transformer, *, tied: bool = True, transforms: bool = False) -> None:
        super().__init__()
        self.body = Body(sizes)
        self.transform = nn.Linear(sizes.hidden, sizes.hidden) if transforms else None
        if transforms:
            self.norm, self.pooler = nn.LayerNorm(sizes.hidden), nn.Linear(sizes.hidden, sizes.hidden)
            self.next_sentence = nn.Linear(sizes.hidden, 2)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=transforms)
        if tied:
            self.head.weight = self.body.tokens.weight

    def forward(self, ids: Tensor, *masks: Tensor, masked: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.body(ids, *masks)
        if self.transform is None:
            return self.head(x), None
        following = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
        if masked is not None:
            x = x.flatten(0, 1).index_select(0, masked)
        return self.head(self.norm(F.gelu(self.transform(x)))), following


class Classifier(nn.Module):
    """BERT with a head on each token (questions on a text: `pools` False) or on the pooled first one."""

    def __init__(self, sizes: Transformer, *, pools: bool) -> None:
        super().__init__()
        self.body, self.pools = Body(sizes), pools
        self.pooler, self.head = nn.Linear(sizes.hidden, sizes.hidden), nn.Linear(sizes.hidden, 2)

    def forward(self, ids: Tensor, *masks: Tensor) -> Tensor:
        x = self.body(ids, *masks)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        output: Tensor = self.head(F.dropout(pooled, 0.1) if self.pools else x)
        return output
