"""Evaluation weights every item alike and leaves the training as it was."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP
from ampsweep.precision import Precision
from ampsweep.tasks.classification import Classification
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
