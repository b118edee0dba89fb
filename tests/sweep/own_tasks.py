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


class Vector(Own):
    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Number(Own):
    def loss(self, model, batch):
        return 1.0


class Detached(Own):
    def loss(self, model, batch):
        return super().loss(model, batch).detach()


class Nothing(Own):
    def loss(self, model, batch):
        return ()


class NotDifferentiable(Own):
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("rounding has no gradient")

    def loss(self, model, batch):
        return self.Rounded.apply(super().loss(model, batch))


class NoEvaluation(Own):
    evaluate = None


class BrokenEvaluation(Own):
    def evaluate(self, model, batch):
        return {"loss": F.cross_entropy(model(batch[0])[:, :3].contiguous(), batch[1].float())}, len(batch[1])


class BareEvaluation(Own):
    def evaluate(self, model, batch):
        return super().evaluate(model, batch)[0]


class FloatEvaluation(Own):
    def evaluate(self, model, batch):
        return {"loss": 1.0}, 3


class Uncounted(Own):
    def evaluate(self, model, batch):
        return super().evaluate(model, batch)[0], None


class BrokenAfterStep(Own):
    def after_step(self, model):
        raise RuntimeError("no target network")


class Looking(Own):
    """Looks at values, and draws from every generator."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        random.random(), np.random.rand(), torch.rand(1)
        return loss * 2 if loss > 1 else loss


class LookingInVain(Looking, BrokenEvaluation):
    """The same, with an evaluation that fails."""


class Seen(Own):
    """Tells in which mode and how often it was called; `turns` of two optimizers, the second of two losses."""

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


class NumberOfTurns(Own):
    turns = 3


class NamesOfTurns(Own):
    turns = ("judge", "maker")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, images):
        return self.layers(images.flatten(1))


class Wrapped(Net):
    def forward(self, images):
        return {"logits": super().forward(images), "hidden": images}
