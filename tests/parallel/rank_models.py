"""Models that a stranger might bring: for the digits, 64 inputs and 10 classes."""

import torch
from torch import nn


class Net(nn.Module):
    """Two layers, not in an attribute `blocks`."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.last = nn.Linear(64, 15, bias=bias), nn.Linear(15, 10, bias=bias)

    def forward(self, inputs):
        return self.last(self.first(inputs.flatten(1)).relu())


class Unbiased(Net):
    def __init__(self):
        super().__init__(bias=False)


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)


class Normalized(Net):
    """With running statistics."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 15), nn.BatchNorm1d(15))


class Unused(Net):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 3)


class Tied(nn.Module):
    """Blocks of which the first and the last share a weight."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.blocks[2].weight = self.blocks[0].weight
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        x = inputs.flatten(1)
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


class Scalar(Net):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.gain * super().forward(inputs)


class InParts:
    """A task that calls parts of its model, and never the model."""

    def loss(self, model, batch):
        inputs, classes = batch
        return nn.functional.cross_entropy(model.last(model.first(inputs.flatten(1)).relu()).float(), classes)

    @torch.no_grad()
    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch)}, len(batch[1])
