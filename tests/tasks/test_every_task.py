"""What holds for every task: one differentiable loss, and evaluation that agrees with it and waits for nothing."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.model_loss import ModelLoss
from ampsweep.tasks.regression import Regression


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 5)

    def forward(self, inputs, targets):
        return (self.net(inputs) - targets).square().mean()


def language_modeling():
    tokens = torch.randint(11, (3, 9))
    model = GPT(vocab_size=11, seq_len=8, num_layers=1, hidden_size=8, num_heads=2)
    return LanguageModeling(), model, (tokens[:, :-1], tokens[:, 1:]), 24


def classification():
    return Classification(label_smoothing=0.1), MLP(5, 7, 3, 2), (torch.randn(4, 5), torch.randint(3, (4,))), 4


def regression():
    return Regression(), MLP(5, 7, 3, 2), (torch.randn(4, 5), torch.randn(4, 3)), 4


def model_loss():
    return ModelLoss(targets="inputs"), Autoencoder(), (torch.randn(4, 5), torch.randn(4, 5)), 4


@pytest.fixture(
    params=[language_modeling, classification, regression, model_loss], ids=lambda setting: setting.__name__
)
def setting(request):
    torch.manual_seed(0)
    return request.param()


def test_the_loss_reaches_every_parameter(setting):
    task, model, batch, _ = setting
    loss = task.loss(model, batch)
    assert loss.shape == ()
    loss.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_evaluation_gives_the_same_loss_and_number_of_items(setting):
    task, model, batch, num_items = setting
    values, count = task.evaluate(model, batch)
    assert torch.equal(values["loss"], task.loss(model, batch).detach())
    assert count == num_items


def test_evaluation_keeps_no_graph(setting):
    task, model, batch, _ = setting
    values, _ = task.evaluate(model, batch)
    assert all(value.shape == () and not value.requires_grad for value in values.values())


def test_neither_loss_nor_evaluation_reads_a_value(setting):
    task, model, batch, _ = setting
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        task.loss(model, batch)
        task.evaluate(model, batch)
    assert "aten::_local_scalar_dense" not in {event.key for event in trace.key_averages()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_loss_is_float32(setting, dtype):
    task, model, batch, _ = setting
    with torch.autocast("cpu", dtype=dtype):
        loss, (values, _) = task.loss(model, batch), task.evaluate(model, batch)
    assert loss.dtype is values["loss"].dtype is torch.float32


@pytest.mark.parametrize("setting", [language_modeling, classification, regression], indirect=True)
def test_a_half_precision_model_still_gets_a_full_precision_loss(setting):
    task, model, batch, _ = setting
    batch = tuple(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in batch)
    loss = task.loss(model.bfloat16(), batch)
    loss.backward()
    assert loss.dtype is torch.float32
    assert all(parameter.grad.dtype is torch.bfloat16 for parameter in model.parameters())
