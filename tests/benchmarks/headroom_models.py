"""Nineteen trainings for `headroom.py`, with scaled weights, inputs and losses: some fit into float16, some do not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ampsweep.models.gpt import GPT

FEATURES, CLASSES, TOKENS, VOCABULARY = 32, 10, 16, 61


@dataclass(frozen=True)
class Case:
    """A training: a model, its batches, and a loss that gets what the model returns, in float32."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    loss_factor: float = 1.0
    """The loss is multiplied by it; the optimizer's eps is, too, so that float32 trains as it does without."""
    lr: float = 3e-3
    eps: float = 1e-8
    followed: Callable[[Tensor, Tensor], Tensor] | None = None
    """The loss by which float16 is compared with float32, where that is another."""


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Residual(nn.Module):
    """A residual stream in float32 of about `stream`, to which normalized branches add, times `branch`."""

    def __init__(self, stream, branch=1.0):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        nn.init.normal_(self.embed.weight, std=stream)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), Scaled(branch)) for _ in range(2)
        )
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, branch in zip(self.norms, self.branches, strict=False):
            x = x + branch(norm(x))
        return self.head(self.norms[-1](x))


class Recurrent(nn.Module):
    """An LSTM over tokens, cell by cell: few CPUs have float16 kernels for a whole one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.cell = nn.LSTMCell(32, 48)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens):
        state, hidden = None, []
        for embedded in self.embed(tokens).unbind(1):
            state = self.cell(embedded, state)
            hidden.append(state[0])
        return self.head(torch.stack(hidden, 1))


class TwoBranches(nn.ModuleList):
    def forward(self, x):
        return torch.stack([classifier(x) for classifier in self], dim=1)


def mlp(*, gain=1.0, norm=False, first_gain=1.0):
    """Three layers whose weights are `gain` times the usual, with norms or without."""
    layers = []
    for width in (FEATURES, 64, 64):
        linear = nn.Linear(width, 64)
        linear.weight.data.mul_(gain)
        layers += [linear, *([nn.LayerNorm(64)] if norm else []), nn.ReLU()]
    layers[0].weight.data.mul_(first_gain)
    return nn.Sequential(*layers, nn.Linear(64, CLASSES))


def convolutions():
    first, second = ((nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((3, 16), (16, 16)))
    return nn.Sequential(*first, nn.MaxPool2d(2), *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def autoencoder():
    return nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 192))


gpt = partial(GPT, vocab_size=VOCABULARY, seq_len=TOKENS, num_layers=2, hidden_size=48, num_heads=2)


def regression(generator, scale=1.0):
    truth = torch.randn(FEATURES, CLASSES, generator=Generator().manual_seed(7))
    x = torch.randn(32, FEATURES, generator=generator)
    return x, (x @ truth) * scale


def features(generator, scale=1.0):
    x, values = regression(generator)
    return x * scale, values.argmax(1)


def tokens(generator):
    start = torch.randint(VOCABULARY, (8, 1), generator=generator)
    stream = (start + 3 * torch.arange(TOKENS + 1)) % VOCABULARY
    return stream[:, :-1], stream[:, 1:]


def images(generator):
    classes = torch.randint(10, (16,), generator=generator)
    patterns = torch.randn(10, 3, 8, 8, generator=Generator().manual_seed(7))
    return patterns[classes] + 0.5 * torch.randn(16, 3, 8, 8, generator=generator), classes


def flat_images(generator, scale=1.0):
    x = images(generator)[0].flatten(1) * scale
    return x, x


def cross_entropy(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def summed_squares(output, target):
    return (output - target).square().sum()


def first_loss(output, target, factor=1.0, of_second=0.0):
    """The loss of the first of two classifiers, and some of the second's."""
    return factor * cross_entropy(output[:, 0], target) + of_second * cross_entropy(output[:, 1], target)


large_features, large_images = partial(features, scale=1e5), partial(flat_images, scale=1e5)

CASES: tuple[Case, ...] = (
    Case("mlp", mlp, features, cross_entropy),
    Case("mlp, loss x 1e6", mlp, features, cross_entropy, loss_factor=1e6),
    Case("mlp, loss x 1e-11", mlp, features, cross_entropy, loss_factor=1e-11),
    Case("mlp, inputs x 1e5, first weights / 1e5", partial(mlp, first_gain=1e-5), large_features, cross_entropy),
    Case("mlp, weights x 300", partial(mlp, gain=300.0), features, cross_entropy),
    Case("mlp, weights x 300, norms", partial(mlp, gain=300.0, norm=True), features, cross_entropy),
    Case(
        "mlp, targets x 300, sum",
        lambda: nn.Sequential(mlp(), Scaled(300.0)),
        partial(regression, scale=300.0),
        summed_squares,
    ),
    Case("gpt", gpt, tokens, cross_entropy),
    Case("gpt, loss x 1e5", gpt, tokens, cross_entropy, loss_factor=1e5),
    Case("gpt, loss x 1e-9", gpt, tokens, cross_entropy, loss_factor=1e-9),
    Case("residual stream of 1e6", partial(Residual, 1e6), tokens, cross_entropy),
    Case("residual branches x 1e6", partial(Residual, 1.0, 1e6), tokens, cross_entropy),
    Case("convolutions", convolutions, images, cross_entropy),
    Case("convolutions, loss x 1e4", convolutions, images, cross_entropy, loss_factor=1e4),
    Case("lstm", Recurrent, tokens, cross_entropy, lr=1e-2),
    Case("lstm, loss x 1e-10", Recurrent, tokens, cross_entropy, loss_factor=1e-10, lr=1e-2),
    Case("autoencoder, sum", autoencoder, flat_images, summed_squares),
    Case("autoencoder, images x 1e5", autoencoder, large_images, summed_squares, lr=1e-2),
    Case(
        "two losses, one x 1e-12",
        lambda: TwoBranches([mlp(), mlp()]),
        features,
        partial(first_loss, factor=1e-12, of_second=1.0),
        eps=1e-22,
        followed=first_loss,
    ),
)
