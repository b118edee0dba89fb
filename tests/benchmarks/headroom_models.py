"""Twenty trainings for `headroom.py`, with scaled weights, inputs and losses: some fit into float16, some do not."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampsweep.models.gpt import GPT

BATCH, FEATURES, CLASSES, TOKENS, VOCABULARY = 32, 32, 10, 16, 61


@dataclass(frozen=True)
class Case:
    """A training: a model, its batches, and a loss that gets what the model returns, in float32."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    loss_factor: float = 1.0
    """The loss is multiplied by it; the optimizer's eps is, too, so that float32 trains as it does without."""
    lr: float = 3e-3
    eps: float = 1e-8
    followed: Callable[[Tensor, Tensor], Tensor] | None = None
    """The loss by which float16 is compared with float32, where that is another."""


class Scaled(nn.Module):
    """Its input times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Residual(nn.Module):
    """A residual stream in float32 of about `stream`, to which normalized branches add, times `branch`."""

    def __init__(self, stream: float, branch: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        nn.init.normal_(self.embed.weight, std=stream)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), Scaled(branch)) for _ in range(2)
        )
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for norm, branch in zip(self.norms, self.branches, strict=False):
            x = x + branch(norm(x))
        logits: Tensor = self.head(self.norms[-1](x))
        return logits


class Recurrent(nn.Module):
    """An LSTM over tokens, cell by cell: few CPUs have float16 kernels for a whole one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.cell = nn.LSTMCell(32, 48)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embed(tokens)
        state, hidden = None, []
        for step in range(tokens.shape[1]):
            state = self.cell(embedded[:, step], state)
            hidden.append(state[0])
        logits: Tensor = self.head(torch.stack(hidden, 1))
        return logits


class ConvBlock(nn.Module):
    """A residual block of convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class TwoBranches(nn.Module):
    """Two classifiers beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.first(x), self.second(x)], dim=1)


class Attention(nn.Module):
    """Attention over features whose queries and keys are `factor` times too large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.embed, self.norm = nn.Embedding(VOCABULARY, 32), nn.LayerNorm(32)
        self.query, self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        scores = (self.query(x) * self.factor) @ (self.key(x) * self.factor).transpose(1, 2)
        weights = (scores / (32**0.5 * self.factor**2)).softmax(-1)
        logits: Tensor = self.head(x + weights @ self.value(x))
        return logits


def mlp(*, depth: int = 3, width: int = 64, out: int = CLASSES, gain: float = 1.0, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(depth):
        linear = nn.Linear(FEATURES if index == 0 else width, width)
        with torch.no_grad():
            linear.weight.mul_(gain)
        layers += [linear, *([nn.LayerNorm(width)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, out))


def rescaled(model: nn.Sequential) -> nn.Sequential:
    """The model for inputs that are 1e5 times too large, as those without normalization may be."""
    with torch.no_grad():
        model[0].weight.div_(1e5)
    return model


def resnet() -> nn.Sequential:
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *stem, ConvBlock(16), nn.MaxPool2d(2), ConvBlock(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def autoencoder() -> nn.Sequential:
    return nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 192))


def gpt() -> nn.Module:
    return GPT(vocab_size=VOCABULARY, seq_len=TOKENS, num_layers=2, hidden_size=48, num_heads=2)


def features(generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    truth = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(7))
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x * scale, (x @ truth).argmax(1)


def regression(generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    truth = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(7))
    x = torch.randn(BATCH, FEATURES, generator=generator)
    return x, (x @ truth) * scale


def tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    start = torch.randint(VOCABULARY, (8, 1), generator=generator)
    stream = (start + 3 * torch.arange(TOKENS + 1)) % VOCABULARY
    return stream[:, :-1], stream[:, 1:]


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    classes = torch.randint(10, (16,), generator=generator)
    patterns = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    return patterns[classes] + 0.5 * torch.randn(16, 3, 8, 8, generator=generator), classes


def flat_images(generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    x = images(generator)[0].flatten(1) * scale
    return x, x


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def summed_squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum()


def first_loss(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output[:, 0], target)


def faint_first_loss(output: Tensor, target: Tensor) -> Tensor:
    """The first classifier's loss, 1e12 times smaller than the second's, which comes with it."""
    return 1e-12 * first_loss(output, target) + cross_entropy(output[:, 1], target)


CASES: tuple[Case, ...] = (
    Case("mlp", mlp, features, cross_entropy),
    Case("mlp, loss x 1e6", mlp, features, cross_entropy, loss_factor=1e6),
    Case("mlp, loss x 1e-11", mlp, features, cross_entropy, loss_factor=1e-11),
    Case("mlp, inputs x 1e5, first weights / 1e5", lambda: rescaled(mlp()), lambda g: features(g, 1e5), cross_entropy),
    Case("mlp, weights x 300", lambda: mlp(gain=300.0), features, cross_entropy),
    Case("mlp, weights x 300, norms", lambda: mlp(gain=300.0, norm=True), features, cross_entropy),
    Case(
        "mlp, targets x 300, sum",
        lambda: nn.Sequential(mlp(), Scaled(300.0)),
        lambda g: regression(g, 300.0),
        summed_squares,
    ),
    Case("gpt", gpt, tokens, cross_entropy),
    Case("gpt, loss x 1e5", gpt, tokens, cross_entropy, loss_factor=1e5),
    Case("gpt, loss x 1e-9", gpt, tokens, cross_entropy, loss_factor=1e-9),
    Case("residual stream of 1e6", lambda: Residual(1e6), tokens, cross_entropy),
    Case("residual branches x 1e6", lambda: Residual(1.0, 1e6), tokens, cross_entropy),
    Case("resnet", resnet, images, cross_entropy),
    Case("resnet, loss x 1e4", resnet, images, cross_entropy, loss_factor=1e4),
    Case("lstm", Recurrent, tokens, cross_entropy, lr=1e-2),
    Case("lstm, loss x 1e-10", Recurrent, tokens, cross_entropy, loss_factor=1e-10, lr=1e-2),
    Case("autoencoder, sum", autoencoder, flat_images, summed_squares),
    Case("autoencoder, images x 1e5", autoencoder, lambda g: flat_images(g, 1e5), summed_squares, lr=1e-2),
    Case("two losses, one x 1e-12", TwoBranches, features, faint_first_loss, eps=1e-22, followed=first_loss),
    Case("attention, scores x 1e5", lambda: Attention(300.0), tokens, cross_entropy),
)
