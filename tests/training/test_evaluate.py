"""Evaluation weights every item alike and leaves the training as it was."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from assembled import CPU, MLP, assemble, trained
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.run.ending import add_autocast_penalty
from ampsweep.run.request import new_record
from ampsweep.training import evaluate as module


def numbers(*batches):
    """Data with these validation batches."""
    return SimpleNamespace(val_batches=lambda: map(torch.tensor, batches))


class Mean:
    """The mean of the model's outputs."""

    def evaluate(self, model, batch):
        self.seen = model.training, torch.is_grad_enabled()
        return {"loss": model(batch).mean()}, len(batch)


def evaluate(model, data, task=None, mode="fp32", how="full"):
    precision = Precision(replace(PRECISION_MODES[mode], eval=how), CPU)
    return module.evaluate(model, data, task or Mean(), precision, lambda batch: batch)


def test_every_item_counts_alike():
    data = numbers([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [100.0])
    assert evaluate(nn.Identity(), data) == {"val/loss": 136 / 9}, "a smaller last batch counts by its items"
    large = numbers([1e8], *([[1.0]] * 100))
    assert evaluate(nn.Identity(), large)["val/loss"] == pytest.approx((1e8 + 100) / 101, rel=1e-12), "in float64"
    assert evaluate(nn.Identity(), numbers()) == {}


class Spread(Mean):
    """Also the spread and the first of all outputs, which no means over batches give."""

    def evaluate(self, model, batch):
        values, count = super().evaluate(model, batch)
        return {**values, "outputs": model(batch)}, count

    def evaluation_metrics(self, outputs):
        self.given = outputs["outputs"]
        return {"spread": self.given.max() - self.given.min(), "first": float(self.given[0])}


def several(**sets):
    """Data with these validation sets, each of these batches."""
    return SimpleNamespace(val_names=[*sets], val_batches=lambda name: map(torch.tensor, sets[name]))


def test_a_metric_may_be_over_the_whole_set():
    task = Spread()
    found = evaluate(nn.Identity(), numbers([1.0, 2.0], [7.0]), task)
    assert found == {"val/loss": 10 / 3, "val/spread": 6.0, "val/first": 1.0}
    assert torch.equal(task.given, torch.tensor([1.0, 2.0, 7.0]))
    short = numbers([1.0])
    short.is_partial = True
    assert evaluate(nn.Identity(), short, task) == {"val/loss": 1.0}, "a part has no metrics of the whole"
    assert evaluate(nn.Identity(), numbers(), task) == {}


def test_each_of_several_sets_has_its_keys_and_the_rest_is_of_all_items():
    data = several(near=[[1.0, 2.0], [3.0]], far=[[10.0]])
    assert evaluate(nn.Identity(), data) == {"val/loss": 4.0, "val/near/loss": 2.0, "val/far/loss": 10.0}
    found = evaluate(nn.Identity(), data, Spread())
    spreads = [found[f"val/{name}spread"] for name in ("", "near/", "far/")]
    assert spreads == [9.0, 2.0, 0.0]


def test_evaluation_takes_no_gradients_and_restores_the_mode():
    for was_training in (True, False):
        model, task = nn.Identity().train(was_training), Mean()
        evaluate(model, numbers([1.0]), task)
        assert task.seen == (False, False)
        assert (model.training, torch.is_grad_enabled()) == (was_training, True)


def test_it_computes_in_full_precision_or_autocast_by_choice():
    model, computed = nn.Linear(2, 1), []
    model.register_forward_hook(lambda _, __, output: computed.append(output.dtype))
    for how in ("full", "autocast"):
        evaluate(model, numbers([[1.0, 2.0]]), mode="amp_bf16", how=how)
    assert computed == [torch.float32, torch.bfloat16]


def with_penalty(training, status="completed"):
    record = new_record(training.config, device="cpu", device_name=None)
    record.status = status
    add_autocast_penalty(record, training.trainer)
    return record


@pytest.mark.parametrize(("mode", "how"), [("amp_bf16", "full"), ("amp_fp16", "full"), ("amp_bf16", "autocast")])
def test_the_penalty_is_what_autocast_adds_to_the_loss(mode, how):
    training = trained(*MLP, f"precision={mode}", f"precision.eval={how}", "trainer.steps=3")
    trainer = training.trainer
    parts = trainer.model, trainer.data, trainer.task, trainer.precision, trainer._prepare
    with trainer.precision.flags():
        losses = {each: module.evaluate(*parts, each)["val/loss"] for each in ("full", "autocast")}
    assert trainer.recorder.values["val/loss"] == losses[how]
    assert trainer.autocast_penalty() == losses["autocast"] - losses["full"] != 0
    for status, keys in (("completed", ["val/autocast_penalty"]), ("interrupted", []), ("diverged", [])):
        assert [*with_penalty(training, status).summary] == keys


def test_without_autocast_or_validation_there_is_no_penalty(monkeypatch):
    training = assemble(*MLP, "precision=amp_bf16", "trainer.steps=3")
    training.trainer.data.val_batches = lambda: iter(())
    training.train()
    assert training.trainer.autocast_penalty() is None
    training = trained(*MLP, "precision=pure_bf16", "precision.eval=autocast", "trainer.steps=3")
    monkeypatch.setattr("ampsweep.training.trainer.evaluate", None)
    assert training.trainer.autocast_penalty() is None


def test_an_evaluation_that_fails_is_recorded_and_ends_nothing():
    training = trained(*MLP, "precision=amp_bf16", "trainer.steps=3")
    for evaluated, reason in (
        (lambda model, batch: 1 / 0, "the second evaluation failed: ZeroDivisionError: division by zero"),
        (lambda model, batch: ({"loss": torch.tensor(math.inf)}, 1), "one of the two validation losses is not finite"),
    ):
        training.built.task.evaluate = evaluated
        record = with_penalty(training)
        assert (record.status, record.summary) == ("completed", {})
        assert record.absent["val/autocast_penalty"].startswith(reason)
