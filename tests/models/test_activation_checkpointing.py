"""Gradient checkpointing costs time, saves memory and changes nothing else."""

import copy

import pytest
import torch
from torch import nn

from ampsweep.models.activation_checkpointing import CheckpointedModel
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.models.resnet import ResNet


def gpt():
    return GPT(vocab_size=11, seq_len=8, num_layers=3, hidden_size=12, num_heads=3, dropout=0.2), torch.randint(
        11, (2, 8)
    )


def mlp():
    return MLP(5, 7, 3, num_layers=4), torch.randn(4, 5)


def resnet():
    return ResNet(18, num_classes=4, in_channels=1, image_size=8), torch.randn(3, 1, 8, 8)


@pytest.fixture(params=[gpt, mlp, resnet], ids=lambda build: build.__name__)
def pair(request):
    """A model, its twin with checkpointing, and an input."""
    torch.manual_seed(0)
    model, inputs = request.param()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    return model, twin, inputs


def train(model, inputs):
    torch.manual_seed(1)  # dropout
    loss = model(inputs).square().mean()
    loss.backward()
    return loss


def kept_for_backward(model, inputs):
    """Bytes of distinct tensors that autograd keeps under autocast from forward to backward, parameters aside."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(inputs)
    assert output.requires_grad
    return sum(storages.values())


def test_loss_and_gradients_are_bitwise_the_same(pair):
    model, twin, inputs = pair
    assert torch.equal(train(model, inputs), train(twin, inputs))
    for (name, expected), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad), name


@pytest.mark.parametrize("pair", [mlp, resnet], indirect=True, ids=lambda build: build.__name__)
def test_a_penalty_on_gradients_is_the_same(pair):
    model, twin, inputs = pair
    for one in (model, twin):
        loss = one(inputs).square().mean()
        gradients = torch.autograd.grad(loss, [*one.parameters()], create_graph=True)
        (loss + sum(gradient.square().sum() for gradient in gradients)).backward()
    for (name, expected), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad), name
    for (name, expected), found in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(expected, found), name


def test_running_statistics_see_each_batch_once(pair):
    model, twin, inputs = pair
    for _ in range(2):
        train(model, inputs)
        train(twin, inputs)
    for (name, expected), found in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(expected, found), name
    momenta = [module.momentum for module in twin.modules() if isinstance(module, nn.BatchNorm2d)]
    assert set(momenta) <= {0.1}


def test_names_in_the_state_dict_stay(pair):
    model, twin, _ = pair
    assert list(model.state_dict()) == list(twin.state_dict())


def test_fewer_bytes_are_kept_for_backward_under_autocast(pair):
    model, twin, inputs = pair
    assert kept_for_backward(twin, inputs) < 0.7 * kept_for_backward(model, inputs)


def test_gradients_are_the_same_under_autocast(pair):
    model, twin, inputs = pair
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [module(inputs).float().square().mean() for module in (model.eval(), twin.eval())]
    for loss in losses:
        loss.backward()
    for (name, expected), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad), name


def test_nothing_is_checkpointed_where_no_backward_follows(pair, monkeypatch):
    _, twin, inputs = pair
    monkeypatch.setattr("ampsweep.models.activation_checkpointing.checkpoint", None)
    with torch.no_grad():
        twin(inputs)


def test_a_compiled_model_updates_running_statistics_once():
    torch.manual_seed(0)

    class Net(CheckpointedModel):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))

        def forward(self, x):
            return self.run(self.block, x)

    eager, images = Net(), torch.randn(2, 1, 8, 8)
    model = copy.deepcopy(eager)
    model.gradient_checkpointing_enable()
    train(eager, images)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), images)
    for expected, found in zip(eager.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(expected, found)
    for expected, found in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(expected.grad, found.grad)
