"""Small trainings whose operators are timed to calibrate a device."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW


class Program(NamedTuple):
    """A model that returns its loss, and what it is trained with."""

    model: nn.Module
    inputs: Tensor
    optimizer: Callable[..., Any]


class _Words(nn.Module):
    """A transformer's block between embedding and head; attention is fused or made of operators."""

    def __init__(self, hidden: int, heads: int, vocabulary: int, *, is_fused: bool) -> None:
        super().__init__()
        self.heads, self.is_fused = heads, is_fused
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-1, -2)) / query.shape[-1] ** 0.5
            mixed = F.dropout(scores.softmax(-1), 0.1) @ value
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class _Images(nn.Module):
    """Convolutions, plain, strided, 1x1 and transposed, with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(inplace=True)),
            *(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True)),
            *(nn.Conv2d(c, 2 * c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * c), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(2 * c, c, 1, bias=False), nn.ConvTranspose2d(c, c, 4, stride=2, padding=1), nn.Tanh()),
        )

    def forward(self, images: Tensor) -> Tensor:
        y = self.layers(images).mean((2, 3))
        return F.mse_loss(y, torch.ones_like(y))


class _Dense(nn.Module):
    """Linear layers from `width` to `inner` and back, with a gate and an RMS norm of operators."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(width, inner), nn.Linear(inner, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.relu(self.first(x))
        gated = F.silu(self.second(gate)) * gate
        normed = gated * torch.rsqrt(gated.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(gated.dtype)
        y = torch.cat([self.third(normed).sigmoid(), -x], -1)
        return F.mse_loss(y, torch.ones_like(y))


_WORDS: Final = (
    *((2, 16, 32, 2, 64), (4, 64, 128, 4, 256), (8, 128, 192, 3, 1024)),
    *((2, 256, 384, 6, 8192), (4, 48, 768, 12, 512)),
)
"""Batch, tokens, hidden size, heads, vocabulary."""
_IMAGES: Final = (
    *((2, 8, 4), (16, 32, 8), (32, 8, 64), (8, 48, 32), (4, 96, 16), (8, 32, 64)),
    *((4, 24, 128), (8, 8, 256), (32, 4, 128), (8, 4, 512)),
)
"""Batch, height and width, channels."""
_DENSE: Final = ((8, 16, 32), (128, 64, 128), (32, 32, 512), (512, 512, 256), (256, 1024, 1024), (64, 384, 2048))
"""Rows, width, inner width."""
_ADAMW: Final = partial(AdamW, fused=True)
_SGD: Final = partial(SGD, lr=0.1, fused=True)


def programs() -> Iterator[Program]:
    """The trainings that calibrate; the first of each kind is mostly the host's work."""
    for words in _WORDS:
        yield _words(*words, is_fused=True)
    for words in _WORDS[:3]:
        yield _words(*words, is_fused=False)
    for images in _IMAGES:
        for order in (torch.contiguous_format, torch.channels_last):
            yield _images(*images, order)
    for number, dense in enumerate(_DENSE):
        yield _dense(*dense, _SGD if number % 2 else _ADAMW)


def checks() -> Iterator[Program]:
    """Trainings of other sizes, by which the calibration is judged."""
    yield _words(3, 96, 256, 4, 3000, is_fused=True)
    yield _words(6, 40, 96, 3, 600, is_fused=False)
    yield _images(8, 40, 24, torch.contiguous_format)
    yield _images(12, 12, 96, torch.channels_last)
    yield _dense(200, 300, 700, _ADAMW)
    yield _dense(100, 800, 160, _SGD)


def _words(batch: int, tokens: int, hidden: int, heads: int, vocabulary: int, *, is_fused: bool) -> Program:
    model = _Words(hidden, heads, vocabulary, is_fused=is_fused)
    return Program(model, torch.randint(vocabulary, (batch, tokens)), _ADAMW)


def _images(batch: int, side: int, channels: int, order: torch.memory_format) -> Program:
    model = _Images(channels).to(memory_format=order)  # type: ignore[call-overload]
    return Program(model, torch.randn(batch, 3, side, side).contiguous(memory_format=order), _SGD)


def _dense(rows: int, width: int, inner: int, optimizer: Callable[..., Any]) -> Program:
    return Program(_Dense(width, inner), torch.randn(rows, width), optimizer)
