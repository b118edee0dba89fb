"""Before any work: model, data and task are tried together as a training does it, without its memory and its time."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.precision import gradients
from ampsweep.sweep.device_checks import too_large
from ampsweep.sweep.model_check import check_model
from ampsweep.sweep.preflight import Checked
from ampsweep.tasks.base import Turn
from ampsweep.tasks.classification import Classification
from ampsweep.training.components.built import build_data


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


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("rounding has no gradient")


ODD = {
    "vector": lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
    "number": lambda logits, labels: 1.0,
    "detached": lambda logits, labels: F.cross_entropy(logits, labels).detach(),
    "nothing": lambda logits, labels: (),
    "rounded": lambda logits, labels: Rounded.apply(F.cross_entropy(logits, labels)),
    "figure": lambda logits, labels: (F.cross_entropy(logits, labels), {"lr": logits.mean()}),
    "many": lambda logits, labels: (F.cross_entropy(logits, labels), {"accuracy": logits.argmax(1) == labels}),
    "read": lambda logits, labels: (F.cross_entropy(logits, labels), {"accuracy": "good"}),
    "bare": lambda logits, labels: {},
    "float": lambda logits, labels: ({"loss": 1.0}, 3),
    "uncounted": lambda logits, labels: ({}, None),
}


class Odd(Own):
    def __init__(self, method, gives):
        setattr(self, method, lambda model, batch: ODD[gives](model(batch[0]), batch[1]))


class Looking(Own):
    """Depends on values, and draws from every generator."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        random.random(), np.random.rand(), torch.rand(1)
        return loss * 2 if loss > 1 else loss


class BrokenAfterStep(Own):
    def after_step(self, model):
        raise RuntimeError("no target network")


class Seen(Own):
    """Notes in which mode it was called; two optimizers, the second with two losses."""

    calls = []

    def noted(self, call, model, place):
        self.calls.append((call, model.training, torch.is_grad_enabled(), place.device.type))

    def head(self, model, batch):
        self.noted("loss", model, batch[0])
        return super().loss(model, batch)

    def both(self, model, batch):
        loss = self.head(model, batch)
        return loss, loss * 2

    @property
    def turns(self):
        return (
            Turn(name="body", loss=self.head, trains={"body": ["layers.0.*"]}),
            Turn(name="head", loss=self.both, trains={"head": ["layers.2.*"]}),
        )

    def evaluate(self, model, batch):
        self.noted("evaluate", model, batch[0])
        return super().evaluate(model, batch)

    def after_step(self, model):
        self.noted("after_step", model, next(model.parameters()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, images):
        return self.layers(images.flatten(1))


class Wrapped(Net):
    def forward(self, images):
        return {"logits": super().forward(images), "hidden": images}


CPU = torch.device("cpu")
NET = ("model=custom", f"model._target_={__name__}.Net", "model.name=net", "data=digits")


def checked(*overrides):
    config = compose_one(["device=cpu", "tracking=disabled", *overrides])
    return config, check_model(config, build_data(config, CPU))


def task(words):
    name, *arguments = words.split()
    return "task=custom", f"task._target_={__name__}.{name}", *(f"+task.{argument}" for argument in arguments)


class Whole(Classification):
    def evaluate(self, model, batch):
        values, count = super().evaluate(model, batch)
        return {**values, "logits": model(batch[0])}, count

    def evaluation_metrics(self, outputs):
        return {"largest": outputs["logits"].max()}


@pytest.mark.parametrize(
    ("metric", "parts", "given"),
    [
        ("val/loss", (), None),
        ("val/f1", (), "val/loss, val/accuracy"),
        ("val/far/loss", (), "val/loss, val/accuracy"),
        ("val/f1", task("Whole"), None),  # which metrics it has is known after an evaluation
    ],
)
def test_a_metric_to_follow_is_one_of_an_evaluation(metric, parts, given):
    settings = ("trainer.eval_every=5", "trainer.patience=2", f"trainer.metric={metric}")
    refused = pytest.raises(UserError, match=f": trainer.metric={metric}: an evaluation here gives {given}$")
    with refused if given else nullcontext():
        checked(*NET, *parts, *settings)


def test_a_task_that_trains_is_accepted_and_no_random_state_changes():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    Seen.calls.clear()
    for name in ("Own", "Penalized", "Looking", "Seen"):
        for model in (NET, ("model=mlp_small", "model.hidden_size=8", "model.num_layers=2")):
            _, found = checked(*model, *task(name))
            assert found.output_bytes > 0
            assert {parameter.device.type for parameter in found.model.parameters()} == {"meta"}
            assert not any(parameter.grad is not None for parameter in found.model.parameters())
    assert states() == before
    assert Seen.calls[:4] == [
        ("loss", True, True, "meta"),
        ("loss", True, True, "meta"),
        ("after_step", True, False, "meta"),
        ("evaluate", False, False, "meta"),
    ], "as in a training"


NOT_TRAINABLE = {
    "Odd method=loss gives=vector": r"the loss must be a scalar, got shape \(64,\)",
    "Odd method=loss gives=number": "the loss must be a tensor, or several in a tuple, got float",
    "Odd method=loss gives=nothing": "the loss must be a tensor, or several in a tuple, got an empty tuple",
    "Odd method=loss gives=detached": "the loss has no gradient: it is detached, or computed from nothing that is",
    "Odd method=loss gives=rounded": "RuntimeError: rounding has no gradient",
    "Odd method=loss gives=figure": "train/lr is a figure of the suite; the task must name its metric otherwise",
    "Odd method=loss gives=many": "metrics must be numbers or scalar tensors, got shape",
    "Odd method=loss gives=read": "metrics must be numbers or scalar tensors, got str as",
    "Odd method=evaluate gives=bare": "evaluate must return a mapping of means and a count, got dict",
    "Odd method=evaluate gives=float": "evaluate must return means that are scalar tensors, got float as loss",
    "Odd method=evaluate gives=uncounted": "evaluate must return the number of items that its means are of, got None",
    "BrokenAfterStep": "RuntimeError: no target network",
}


def test_an_error_that_a_training_would_find_is_found_before():
    for words, said in NOT_TRAINABLE.items():
        with pytest.raises(UserError, match=f"^model=net cannot be trained on data=digits with task=custom: {said}"):
            checked(*NET, *task(words))
    with pytest.raises(UserError, match=r"^task=custom has no turns: AttributeError: 'object' object"):
        checked(*NET, "task=custom", "task._target_=builtins.object")
    wrapped = (*NET, f"model._target_={__name__}.Wrapped")
    names = "the model returns a dict with the tensors logits, hidden"
    with pytest.raises(UserError, match=f"{names}; task.output must name the tensor that the task"):
        checked(*wrapped)
    with pytest.raises(UserError, match=f"task.output=logit: {names}"):
        checked(*wrapped, "task.output=logit")
    checked(*wrapped, "task.output=logits")


def test_no_more_than_a_batch_is_evaluated(monkeypatch):
    config = compose_one(["device=cpu", *NET, *task("Own")])
    data = build_data(config, CPU)
    batches = iter([next(data.val_batches())])
    monkeypatch.setattr(data, "val_batches", lambda: (next(batches) for _ in range(2)))
    check_model(config, data)


@pytest.mark.parametrize(("limit_gib", "is_traced"), [(1, False), (0.0001, True)])
def test_a_step_is_traced_only_where_it_may_not_fit(limit_gib, is_traced):
    config, found = checked("model=mlp_small", "data=digits", f"trainer.memory_limit_gib={limit_gib}")
    size = sum(parameter.numel() for parameter in found.model.parameters())
    sentence = too_large(config, CPU, Checked(num_parameters=size, output_bytes=found.output_bytes))
    assert (sentence is not None) == is_traced
