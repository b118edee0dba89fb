"""Models that a stranger might bring: for the digits, 64 inputs and 10 classes."""

import torch
from torch import nn

from ampsweep.tasks.base import Turn


class Net(nn.Module):
    """Two layers, not in an attribute `blocks`."""

    def __init__(self, bias=True):
        super().__init__()
        self.first, self.last = nn.Linear(64, 15, bias=bias), nn.Linear(15, 10, bias=bias)

    def forward(self, inputs):
        return self.last(self.first(inputs.flatten(1)).relu())


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)


class Normalized(Net):
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


class EveryState(Net):
    """Running statistics, dropout, a tied weight, and parameters that two ranks cannot share evenly."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 15), nn.BatchNorm1d(15), nn.Dropout(0.3))
        tied, again = nn.Linear(15, 15), nn.Linear(15, 15)
        again.weight = tied.weight
        self.last = nn.Sequential(tied, nn.Tanh(), again, nn.Linear(15, 1), nn.Linear(1, 10))


class InParts:
    """A task that calls parts of its model, and never the model."""

    def loss(self, model, batch):
        inputs, classes = batch
        return nn.functional.cross_entropy(model.last(model.first(inputs.flatten(1)).relu()).float(), classes)

    @torch.no_grad()
    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch)}, len(batch[1])


class TwoOptimizers(InParts):
    @property
    def turns(self):
        return (Turn(name="both", loss=self.loss, trains={"body": ["first.*"], "tied": ["last.*"]}),)
