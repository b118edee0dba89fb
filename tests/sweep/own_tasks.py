"""Tasks and models of a user, each with something that only a training would find."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.precision import gradients
from ampsweep.tasks.base import Turn


class Own:
    """Classifies, as the suite's own task does."""

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model, batch):
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}, len(batch[1])


class Penalized(Own):
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss + sum(gradient.square().sum() for gradient in gradients(loss, [*model.parameters()]))


class ByHand(Own):
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        found = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        return loss + sum(gradient.square().sum() for gradient in found)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("rounding has no gradient")


LOSSES = {
    "Vector": lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
    "Number": lambda logits, labels: 1.0,
    "Detached": lambda logits, labels: F.cross_entropy(logits, labels).detach(),
    "Nothing": lambda logits, labels: (),
    "NotDifferentiable": lambda logits, labels: Rounded.apply(F.cross_entropy(logits, labels)),
}
EVALUATIONS = {
    "Broken": lambda logits, labels: F.cross_entropy(logits[:, :3].contiguous(), labels.float()),
    "Bare": lambda logits, labels: {"loss": F.cross_entropy(logits, labels)},
    "Float": lambda logits, labels: ({"loss": 1.0}, 3),
    "Uncounted": lambda logits, labels: ({"loss": F.cross_entropy(logits, labels)}, None),
    "Absent": None,
}


class OddLoss(Own):
    def __init__(self, kind):
        self._loss = LOSSES[kind]

    def loss(self, model, batch):
        return self._loss(model(batch[0]), batch[1])


class OddEvaluation(Own):
    def __init__(self, kind):
        self._evaluate = EVALUATIONS[kind]

    def evaluate(self, model, batch):
        return self._evaluate(model(batch[0]), batch[1])


class BrokenAfterStep(Own):
    def after_step(self, model):
        raise RuntimeError("no target network")


class Looking(Own):
    """Depends on values, and draws from every generator."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        random.random(), np.random.rand(), torch.rand(1)
        return loss * 2 if loss > 1 else loss


class LookingInVain(Looking):
    """The same, with an evaluation that fails."""

    def evaluate(self, model, batch):
        raise RuntimeError("no evaluation")


class Seen(Own):
    """Notes in which mode it was called; two optimizers, the second with two losses."""

    calls = []

    def both(self, model, batch):
        loss = self.head(model, batch)
        return loss, loss * 2

    def head(self, model, batch):
        self.calls.append(("loss", model.training, torch.is_grad_enabled(), batch[0].device.type))
        return super().loss(model, batch)

    @property
    def turns(self):
        return (
            Turn(name="body", loss=self.head, trains={"body": ["layers.0.*"]}),
            Turn(name="head", loss=self.both, trains={"head": ["layers.2.*"]}),
        )

    def evaluate(self, model, batch):
        self.calls.append(("evaluate", model.training, torch.is_grad_enabled(), batch[0].device.type))
        return super().evaluate(model, batch)

    def after_step(self, model):
        self.calls.append(("after_step", model.training, torch.is_grad_enabled(), "meta"))


class NoTurn:
    """Has neither a loss nor turns."""


class OddTurns(Own):
    def __init__(self, turns):
        self.turns = turns


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, images):
        return self.layers(images.flatten(1))


class Wrapped(Net):
    def forward(self, images):
        return {"logits": super().forward(images), "hidden": images}
