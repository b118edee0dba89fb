"""Planted faults: trainings with one thing wrong, and what the doctor must find."""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ampsweep.config.compose import compose_points
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import KeptBatches
from ampsweep.training.components.built import build_data

CPU = torch.device("cpu")


def examined_of(*overrides, num_steps=6, seconds=100.0):
    """A training as the doctor makes it of a command line; None takes the steps of `doctor.steps`."""
    config = compose_points(["device=cpu", *overrides], multirun=False).points[0].config
    device = torch.device(config.device)
    data = KeptBatches(build_data(config, device), time.monotonic() + seconds)
    return ExaminedTraining(config, device, data, num_steps=num_steps or config.doctor.steps)


@dataclass(frozen=True)
class Planted:
    """A training, by overrides of train.py, whose first finding of a complaint is known."""

    complaint: str
    name: str
    overrides: tuple[str, ...]
    kind: str
    module: str | None = None
    """The first module of the finding; None for a fault outside the model."""
    operator: str | None = None
    """The operator that it names; None: any."""


class Inner(nn.Module):
    """A module whose forward pass is a function of itself and its input."""

    def __init__(self, run: Callable, width: int, num_layers: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))
        self.register_buffer("scale", torch.ones(width))
        self.run = run

    def forward(self, x):
        return self.run(self, x)


class Net(nn.Module):
    """Two layers around an inner module, a class or function such as `planted_loss.softmax`, which gets
    (batch_size, width), or with a length (batch_size, length, width)."""

    def __init__(self, inner, sizes, length=0, num_layers=3, std=None, shift=0.0, last_std=None) -> None:
        super().__init__()
        in_features, width, out_features = sizes
        file, _, name = inner.partition(".")
        made, self.length = getattr(importlib.import_module(file), name), length
        self.before, self.head = nn.Linear(in_features, width), nn.Linear(width, out_features)
        self.inner = made(width) if isinstance(made, type) else Inner(made, width, num_layers)
        with torch.no_grad():
            self.before.bias += shift
            for layer, layer_std in ((self.before, std), (self.head, last_std)):
                if layer_std is not None:
                    layer.weight.normal_(std=layer_std)

    def forward(self, x):
        x = self.before(x)
        x = self.inner(x[:, None].expand(-1, self.length, -1) if self.length else x)
        return self.head(x.mean(1) if self.length else x)


def around(inner: str, *more: str, sizes: tuple[int, int, int], batch_size: int, **settings: object) -> tuple[str, ...]:
    """A training of `Net`; sizes are of its input, its inner module and its output."""
    data = (f"data.in_features={sizes[0]}", f"data.out_features={sizes[2]}", f"data.batch_size={batch_size}")
    model = {"inner": inner, "sizes": [*sizes]} | settings
    given = (f"+model.{name}={str(value).replace(' ', '')}" for name, value in model.items())
    return ("model=custom", "model._target_=planted.Net", *given, "data=synthetic", *data, "task=regression", *more)


class OwnLoss:
    """Base of tasks with a loss of their own."""

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch).detach()}, len(batch[0])
