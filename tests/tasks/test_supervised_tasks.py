"""Losses and accuracies, computed by hand."""

import math

import pytest
import torch
from torch import nn

from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.regression import Regression


class Fixed(nn.Module):
    """Returns the same output whatever the input."""

    def __init__(self, output):
        super().__init__()
        self.output = torch.tensor(output)

    def forward(self, inputs):
        return self.output


NOTHING = torch.empty(0)


def test_language_modeling_averages_nats_over_all_tokens():
    thirds = [math.log(1), math.log(2)]  # probabilities 1/3 and 2/3
    batch = (NOTHING, torch.tensor([[0, 1], [1, 1]]))
    values, num_tokens = LanguageModeling().evaluate(Fixed([[thirds, thirds], [thirds, thirds]]), batch)
    assert values["loss"].item() == pytest.approx((math.log(3) + 3 * math.log(1.5)) / 4)
    assert num_tokens == 4


def test_accuracy_is_the_share_of_highest_logits():
    logits = [[3.0, 1.0], [0.0, 2.0], [5.0, 1.0], [0.0, 1.0]]
    values, num_items = Classification().evaluate(Fixed(logits), (NOTHING, torch.tensor([0, 1, 1, 1])))
    assert values["accuracy"] == 0.75
    assert num_items == 4


def test_label_smoothing_mixes_in_the_uniform_distribution():
    # Probabilities 1/4 and 3/4; the smoothed target is 0.1 and 0.9.
    loss = Classification(label_smoothing=0.2).loss(Fixed([[0.0, math.log(3)]]), (NOTHING, torch.tensor([1])))
    assert loss.item() == pytest.approx(-0.1 * math.log(1 / 4) - 0.9 * math.log(3 / 4))


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0])
def test_impossible_smoothing_is_refused(label_smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing must be at least 0 and below 1, got {label_smoothing}"):
        Classification(label_smoothing=label_smoothing)


def test_regression_averages_squares_over_all_values():
    loss = Regression().loss(Fixed([[1.0, 2.0], [3.0, 4.0]]), (NOTHING, torch.tensor([[1.0, 0.0], [3.0, 1.0]])))
    assert loss == (4 + 9) / 4


def test_regression_does_not_broadcast():
    with pytest.raises(ValueError, match=r"outputs have shape \(2, 1\), the targets \(2,\)"):
        Regression().loss(Fixed([[1.0], [2.0]]), (NOTHING, torch.zeros(2)))
