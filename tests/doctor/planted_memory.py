"""Trainings whose memory does not shrink, for reasons that users have."""

from functools import partial

import torch
import torch.nn.functional as F
from planted import Inner, Planted, around
from torch import nn

WIDTH = 64


def layers(self, x):
    for layer in self.layers:
        x = F.gelu(layer(x))
    return x


def cast_to_float(self, x):
    for layer in self.layers:
        x = F.gelu(layer(x).float())
        x = F.silu(x)
    return x


def without_autocast(self, x):
    with torch.autocast(x.device.type, enabled=False):
        return layers(self, x.float())


def scaled_by_buffer(self, x):
    for layer in self.layers:
        x = F.silu(F.gelu(layer(x) * self.scale))
    return x


class KeptProbes(Inner):
    """The mean of a probe that no loss uses, added up for the log: no backward pass frees what it was made of."""

    def __init__(self, width) -> None:
        super().__init__(layers, width, 4)
        self.total = []

    def forward(self, x):
        self.total.append(F.gelu(self.layers[3](x)).square().mean())
        return super().forward(x)


class Shared(nn.Module):
    def __init__(self, width) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(width, 32 * width, bias=False), nn.Linear(32 * width, width))

    def forward(self, x):
        x = x[:, :1]
        for _ in range(8):
            x = x + self.layer(x)
        return x


class TransposedTwice(nn.Linear):
    def __init__(self, width) -> None:
        super().__init__(32 * width, width)

    def forward(self, x):
        x = x[:, :1]
        for _ in range(8):
            x = x + F.linear(F.linear(x, self.weight.t()), self.weight)
        return x


class Adapted(nn.Module):
    def __init__(self, width) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(width, 2048 * width), nn.ReLU(), nn.Linear(2048 * width, width))
        self.frozen.requires_grad_(False)
        self.adapter = nn.Linear(width, width)

    def forward(self, x):
        x = x[:, 0]
        return (x + self.frozen(self.adapter(x)))[:, None]


class Words(nn.Sequential):
    def __init__(self, vocab_size) -> None:
        super().__init__(nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size))


def net(inner: str, *more: str, precision: str = "amp_bf16", batch_size: int = 64) -> tuple[str, ...]:
    more, sizes = (f"precision={precision}", *more), (WIDTH, WIDTH, 1)
    return around(f"planted_memory.{inner}", *more, sizes=sizes, batch_size=batch_size, length=64)


_case = partial(Planted, "memory")
_WORDS = ("model=custom", "model._target_=planted_memory.Words", "+model.vocab_size=8192", "task=language_modeling")
_TOKENS = ("data=synthetic_tokens", "data.vocab_size=8192", "data.seq_len=64", "data.batch_size=8")
_WEIGHTS = ("model=mlp_recipe", "model.hidden_size=1024", "model.num_layers=6", "data.batch_size=16")
_FEATURES = ("data.in_features=1024", "data.out_features=1024")

PLANTED = (
    _case("cast to float32", net("cast_to_float"), "float32_cast", "inner"),
    _case("autocast off", net("without_autocast"), "float32_autocast_off", "inner"),
    _case("modules in float32", net("layers", "precision.fp32_modules=[inner]"), "float32_autocast_off", "inner"),
    _case("scale in float32", net("scaled_by_buffer"), "float32_promoted", "inner"),
    _case("probes for the log", net("KeptProbes"), "grows_from_step_to_step", "inner.layers.3"),
    _case("no cache of casts", net("Shared", "precision.cache_enabled=false"), "cast_again", "inner.layer.0"),
    _case("weight through a view", net("TransposedTwice"), "cast_again", "inner"),
    _case("large vocabulary", ("precision=amp_bf16", *_WORDS, *_TOKENS), "large_loss"),
    _case("frozen weights", net("Adapted", batch_size=2), "mostly_state"),
    _case("mostly weights", ("precision=amp_bf16", *_WEIGHTS, *_FEATURES), "mostly_state"),
)
