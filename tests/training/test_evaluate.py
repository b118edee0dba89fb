"""Evaluation weights every item alike and leaves the training as it was."""

from dataclasses import replace

import pytest
import torch
from assembled import MLP as MLP_ON_DIGITS
from assembled import assemble
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP
from ampsweep.precision import Precision
from ampsweep.run.ending import add_autocast_penalty
from ampsweep.run.request import new_record
from ampsweep.tasks.classification import Classification
from ampsweep.training.assembly import ShortValidation
from ampsweep.training.evaluate import evaluate

CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)


class Numbers:
    """Validation batches of given numbers."""

    def __init__(self, *batches):
        self.batches = [torch.tensor(batch) for batch in batches]

    def val_batches(self):
        yield from self.batches


class Mean:
    """The mean of what the model makes of the numbers."""

    def evaluate(self, model, batch):
        self.seen = model.training, torch.is_grad_enabled()
        return {"loss": model(batch).mean()}, len(batch)


class Watched(nn.Module):
    """Remembers the dtype it computes in."""

    def __init__(self):
        super().__init__()
        self.layer, self.computed = nn.Linear(1, 1), set()

    def forward(self, batch):
        out = self.layer(batch[:, None])
        self.computed.add(out.dtype)
        return out.float()


def same(batch):
    return batch


def test_a_smaller_last_batch_counts_by_its_items():
    data = Numbers([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [100.0])
    assert evaluate(nn.Identity(), data, Mean(), FP32, same) == {"val/loss": 136 / 9}


def test_large_and_small_values_lose_no_digits_to_each_other():
    data = Numbers([1e8], *([[1.0]] * 100))
    assert evaluate(nn.Identity(), data, Mean(), FP32, same)["val/loss"] == pytest.approx((1e8 + 100) / 101, rel=1e-12)


def test_the_batch_size_does_not_matter_to_loss_and_accuracy():
    torch.manual_seed(0)
    model = MLP(in_features=64, hidden_size=16, out_features=10, num_layers=2)
    found = [
        evaluate(model, Digits(val_fraction=0.2, batch_size=size, seed=0, device=CPU), Classification(), FP32, same)
        for size in (359, 100, 7)  # of 359 held-out digits
    ]
    assert found[0].keys() == {"val/loss", "val/accuracy"}
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.parametrize("was_training", [True, False])
def test_evaluation_takes_no_gradients_and_restores_the_mode(was_training):
    model, task = nn.Identity().train(was_training), Mean()
    evaluate(model, Numbers([1.0]), task, FP32, same)
    assert task.seen == (False, False)
    assert model.training == was_training
    assert torch.is_grad_enabled()


def test_without_validation_batches_nothing_is_reported():
    assert evaluate(nn.Identity(), Numbers(), Mean(), FP32, same) == {}


@pytest.mark.parametrize(("choice", "dtype"), [("full", torch.float32), ("autocast", torch.bfloat16)])
def test_it_computes_in_full_precision_or_autocast_by_choice(choice, dtype):
    precision = Precision(replace(PRECISION_MODES["amp_bf16"], eval=choice), CPU)
    model = Watched()
    evaluate(model, Numbers([1.0, 2.0]), Mean(), precision, same)
    assert model.computed == {dtype}


def ended(*overrides):
    training = assemble(*MLP_ON_DIGITS, *overrides, "trainer.steps=3")
    assert training.train().status == "completed"
    return training


def loss_with(training, how):
    trainer = training.trainer
    with trainer.precision.flags():
        return evaluate(trainer.model, trainer.data, trainer.task, trainer.precision, trainer._prepare, how)["val/loss"]


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("how", ["full", "autocast"])
def test_the_penalty_is_what_autocast_adds_to_the_loss(mode, how):
    training = ended(f"precision={mode}", f"precision.eval={how}")
    full, autocast = (loss_with(training, each) for each in ("full", "autocast"))
    assert training.trainer.recorder.values["val/loss"] == (full if how == "full" else autocast)
    assert training.trainer.autocast_penalty() == autocast - full != 0


@pytest.mark.parametrize("mode", ["fp32", "pure_bf16"])
def test_without_autocast_nothing_is_evaluated_twice(mode, monkeypatch):
    training = ended(f"precision={mode}", "precision.eval=autocast")
    monkeypatch.setattr("ampsweep.training.trainer.evaluate", None)
    assert training.trainer.autocast_penalty() is None


def test_without_validation_there_is_no_penalty():
    training = assemble(*MLP_ON_DIGITS, "precision=amp_bf16", "trainer.steps=3")
    training.trainer.data = WithoutValidation(training.trainer.data)
    training.train()
    assert training.trainer.autocast_penalty() is None


class WithoutValidation(ShortValidation):
    def val_batches(self):
        yield from ()


class NeedsAutocast(nn.Module):
    """Casts by itself and relies on autocast to fit the rest."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        return self.layer(images.flatten(1).bfloat16())


class Overflows(nn.Module):
    """Has an infinite loss in float16, while it is evaluated."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        return self.layer(images.flatten(1)) * (1.0 if self.training else 1e6)


def record_of(training, status):
    record = new_record(training.config, device="cpu", device_name=None)
    record.status = status
    return record


@pytest.mark.parametrize(
    ("model", "how", "reason"),
    [(NeedsAutocast, "autocast", "the second evaluation failed: RuntimeError: "), (Overflows, "full", "not finite")],
)
def test_an_evaluation_that_fails_is_told_and_ends_nothing(model, how, reason):
    own = ("model=custom", f"model._target_={model.__module__}.{model.__name__}", "data=digits")
    mode = "amp_bf16" if model is NeedsAutocast else "amp_fp16"
    training = assemble(*own, f"precision={mode}", f"precision.eval={how}", "trainer.steps=3", "optimizer.lr=1e-6")
    assert training.train().status == "completed"
    record = record_of(training, "completed")
    add_autocast_penalty(record, training.trainer)
    assert (record.status, record.summary) == ("completed", {})
    assert reason in record.absent["val/autocast_penalty"]


def test_only_a_run_that_completed_has_a_penalty():
    training = ended("precision=amp_bf16")
    for status, keys in (("completed", ["val/autocast_penalty"]), ("interrupted", []), ("diverged", [])):
        record = record_of(training, status)
        add_autocast_penalty(record, training.trainer)
        assert [*record.summary] == keys
