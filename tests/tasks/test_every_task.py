"""Every task: a differentiable loss, computed by hand, and evaluation that agrees with it and waits for nothing."""

import math

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.gan import GAN
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.model_loss import ModelLoss
from ampsweep.tasks.regression import Regression


class Autoencoder(nn.Linear):
    def forward(self, inputs, targets):
        return (super().forward(inputs) - targets).square().mean()


def language_modeling():
    tokens = torch.randint(11, (3, 9))
    model = GPT(vocab_size=11, seq_len=8, num_layers=1, hidden_size=8, num_heads=2)
    return LanguageModeling(), model, (tokens[:, :-1], tokens[:, 1:]), 24


def classification():
    return Classification(label_smoothing=0.1), MLP(5, 7, 3, 2), (torch.randn(4, 5), torch.randint(3, (4,))), 4


def regression():
    return Regression(), MLP(5, 7, 3, 2), (torch.randn(4, 5), torch.randn(4, 3)), 4


def model_loss():
    return ModelLoss(targets="inputs"), Autoencoder(5, 5), (torch.randn(4, 5), torch.randn(4, 5)), 4


@pytest.mark.parametrize("make", [language_modeling, classification, regression, model_loss])
def test_loss_and_evaluation_agree_and_read_no_value(make):
    torch.manual_seed(0)
    task, model, batch, num_items = make()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        loss = task.loss(model, batch)
        values, count = task.evaluate(model, batch)
    assert "aten::_local_scalar_dense" not in {event.key for event in trace.key_averages()}
    assert torch.equal(values["loss"], loss.detach())
    assert count == num_items
    assert all(value.shape == () and not value.requires_grad for value in values.values()), "no graph is kept"
    loss.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            loss, (values, _) = task.loss(model, batch), task.evaluate(model, batch)
        assert loss.dtype is values["loss"].dtype is torch.float32
    if make is not model_loss:
        low = tuple(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in batch)
        assert task.loss(model.bfloat16(), low).dtype is torch.float32


class Fixed(nn.Module):
    """Returns the same output whatever the input."""

    def __init__(self, output):
        super().__init__()
        self.output = torch.tensor(output)

    def forward(self, inputs):
        return self.output


NOTHING = torch.empty(0)


def test_losses_and_accuracy_are_those_computed_by_hand():
    thirds = [math.log(1), math.log(2)]  # probabilities 1/3 and 2/3
    batch = (NOTHING, torch.tensor([[0, 1], [1, 1]]))
    values, num_tokens = LanguageModeling().evaluate(Fixed([[thirds, thirds], [thirds, thirds]]), batch)
    assert values["loss"].item() == pytest.approx((math.log(3) + 3 * math.log(1.5)) / 4)
    assert num_tokens == 4
    logits = [[3.0, 1.0], [0.0, 2.0], [5.0, 1.0], [0.0, 1.0]]
    values, num_items = Classification().evaluate(Fixed(logits), (NOTHING, torch.tensor([0, 1, 1, 1])))
    assert (values["accuracy"], num_items) == (0.75, 4)
    # Probabilities 1/4 and 3/4; the smoothed target is 0.1 and 0.9.
    loss = Classification(label_smoothing=0.2).loss(Fixed([[0.0, math.log(3)]]), (NOTHING, torch.tensor([1])))
    assert loss.item() == pytest.approx(-0.1 * math.log(1 / 4) - 0.9 * math.log(3 / 4))
    loss = Regression().loss(Fixed([[1.0, 2.0], [3.0, 4.0]]), (NOTHING, torch.tensor([[1.0, 0.0], [3.0, 1.0]])))
    assert loss == (4 + 9) / 4


class Players:
    """Generates 2, 3 and so on; the score of an image is its only value."""

    latent_size, discriminator = 1, staticmethod(lambda images: images)
    noise = __call__ = staticmethod(lambda like: torch.arange(2.0, 2.0 + len(like)).unsqueeze(1))


def test_the_losses_of_a_gan_are_those_of_its_paper():
    batch = (torch.tensor([[0.0], [1.0]]), None)
    of_discriminator, of_generator = (turn.loss(Players(), batch).item() for turn in GAN().turns)
    surprise = lambda score: math.log1p(math.exp(-score))  # noqa: E731  that an image of this score is real
    assert of_discriminator == pytest.approx((surprise(0) + surprise(1) + surprise(-2) + surprise(-3)) / 2)
    assert of_generator == pytest.approx((surprise(2) + surprise(3)) / 2)
    values, num_images = GAN().evaluate(Players(), batch)
    assert (values["loss"].item(), num_images) == (2 * 2 - 0.5 - 0.5, 2), "the energy distance"


def test_wrong_settings_and_shapes_are_refused():
    for label_smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"label_smoothing must be at least 0 and below 1, got {label_smoothing}"):
            Classification(label_smoothing=label_smoothing)
    with pytest.raises(ValueError, match=r"outputs have shape \(2, 1\), the targets \(2,\)"):
        Regression().loss(Fixed([[1.0], [2.0]]), (NOTHING, torch.zeros(2)))
