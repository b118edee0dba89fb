"""The training that every variant does: an MLP on batches that lie in memory, so that only the step takes time."""

import itertools
import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
SEED = 0
NUM_STAMPED_STEPS = 20


@dataclass(frozen=True)
class Size:
    """How much a step computes, and how many steps are timed."""

    features: int
    hidden: int
    batch_size: int
    untimed_steps: int
    """Steps before the timed ones: warm-up, and what happens once, such as W&B's start beside the suite's training."""
    block_steps: int
    """Steps that one timing spans; a multiple of every logging interval."""
    num_blocks: int

    @property
    def num_steps(self) -> int:
        return self.untimed_steps + self.block_steps * self.num_blocks + 10


SIZES = {
    "small": Size(features=64, hidden=64, batch_size=32, untimed_steps=15_000, block_steps=100, num_blocks=50),
    "large": Size(features=512, hidden=1280, batch_size=64, untimed_steps=600, block_steps=20, num_blocks=20),
}
"""A step of about 0.14 ms and one of about 5 ms on one thread of a server core."""


class Net(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, features))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class StampedNet(Net):
    """Notes when its training took its first and its last step, in `first-PID` and `last-PID` in the directory STAMPS.

    The stamps come after the optimizer's step, so that nothing of it is left to be imported or allocated.
    """

    _begun = False

    def forward(self, inputs: Tensor) -> Tensor:
        is_real = inputs.device.type != "meta" and type(next(self.parameters())) is nn.Parameter
        if is_real and torch.is_grad_enabled() and not self._begun:  # no check of the config, and no prediction
            self._begun, steps = True, itertools.count(1)
            register_optimizer_step_post_hook(lambda *_: self._stamp(next(steps)))
        return super().forward(inputs)

    def _stamp(self, step: int) -> None:
        if name := {1: "first", NUM_STAMPED_STEPS: "last"}.get(step):
            (Path(os.environ["STAMPS"]) / f"{name}-{os.getpid()}").write_text(repr(time.time()), encoding="ascii")


class Batches:
    """Random inputs and targets, visited in turn; notes when each step fetches its batch."""

    num_train_batches = 16
    fingerprint = "benchmark"
    fetched_s = array("d")
    """Of the one training of this process: the host clock at the beginning of each step."""

    def __init__(self, features: int, batch_size: int, seed: int = SEED, device: torch.device | None = None) -> None:
        self.batch_size = self.tokens_per_batch = batch_size
        rng = torch.Generator().manual_seed(seed)
        shape = (self.num_train_batches, batch_size, features)
        inputs, targets = torch.randn(shape, generator=rng), torch.randn(shape, generator=rng)
        self._batches = [*zip(inputs.unbind(), targets.unbind(), strict=True)]

    def train_batch(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched_s.append(time.perf_counter())
        return self._batches[index % self.num_train_batches]

    def val_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._batches[0]


def block_times_us(size: Size) -> list[float]:
    """Mean time of a step in each timed block, in microseconds."""
    marks = Batches.fetched_s[size.untimed_steps :: size.block_steps][: size.num_blocks + 1]
    assert len(marks) == size.num_blocks + 1
    return [1e6 * (end - start) / size.block_steps for start, end in itertools.pairwise(marks)]


def fresh(size: Size) -> tuple[Net, Batches, torch.optim.AdamW]:
    """Model, data and optimizer of a training by hand; the same weights and batches in every variant."""
    torch.manual_seed(SEED)
    model = Net(size.features, size.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    return model, Batches(size.features, size.batch_size), optimizer
