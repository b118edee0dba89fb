"""Models that a stranger might bring: for the digits, 64 inputs and 10 classes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from ampsweep.tasks.base import Turn
from ampsweep.tasks.classification import Classification


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


class Gradual(Classification):
    """Trains the last layer of a `Net`, and from the third step on all, with a metric beside the loss."""

    def before_step(self, model, step):
        model.first.requires_grad_(step > 2)

    def loss(self, model, batch):
        outputs = model(batch[0])
        return F.cross_entropy(outputs.float(), batch[1]), {"accuracy": (outputs.argmax(1) == batch[1]).float().mean()}


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


class Points(Dataset):
    """Random digits, others for each seed."""

    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.items = torch.randn(length, 64, generator=generator), torch.randint(10, (length,), generator=generator)

    def __len__(self):
        return len(self.items[0])

    def __getitem__(self, item):
        return tuple(part[item] for part in self.items)


class Ordered(Classification):
    """Its metric depends on the order of all items."""

    def evaluate(self, model, batch):
        values, count = super().evaluate(model, batch)
        return {**values, "logits": model(batch[0]), "classes": batch[1]}, count

    def evaluation_metrics(self, outputs):
        place = torch.arange(len(outputs["classes"]), dtype=torch.float64)
        hits = (outputs["logits"].argmax(1) == outputs["classes"]).double()
        return {"place": (place * (outputs["classes"] + hits)).sum(), "items": len(place)}


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
