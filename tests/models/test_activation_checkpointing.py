"""Activation checkpointing saves memory and changes nothing else."""

import copy

import pytest
import torch
from torch import nn

from ampsweep.models.activation_checkpointing import CheckpointedModel
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.models.resnet import ResNet

MODELS = {
    "gpt": lambda: (GPT(11, 8, num_layers=3, hidden_size=12, num_heads=3, dropout=0.2), torch.randint(11, (2, 8))),
    "mlp": lambda: (MLP(5, 7, 3, num_layers=4), torch.randn(4, 5)),
    "resnet": lambda: (ResNet(18, num_classes=4, in_channels=1, image_size=8), torch.randn(3, 1, 8, 8)),
}


@pytest.fixture(params=MODELS)
def pair(request):
    """A model, its twin with checkpointing, and an input."""
    torch.manual_seed(0)
    model, inputs = MODELS[request.param]()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    return model, twin, inputs


def train(model, inputs, penalty=False):
    torch.manual_seed(1)  # dropout
    loss = model(inputs).float().square().mean()
    if penalty:  # makes backward pass a block twice
        gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        loss = loss + sum(gradient.square().sum() for gradient in gradients)
    loss.backward()
    return loss


def kept_for_backward(model, inputs):
    """Bytes of distinct tensors that autograd keeps under autocast from forward to backward, without parameters."""
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    )
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(inputs)
    assert output.requires_grad
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(num_bytes for place, num_bytes in storages.items() if place not in own)


def test_loss_gradients_and_running_statistics_are_the_same(pair):
    model, twin, inputs = pair
    for penalty in (False, not isinstance(model, GPT)):
        assert torch.equal(train(model, inputs, penalty), train(twin, inputs, penalty))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model, inputs)
        train(twin, inputs)
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, twin)]
    assert all(map(torch.equal, *gradients))
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
    assert {module.momentum for module in twin.modules() if isinstance(module, nn.BatchNorm2d)} <= {0.1}
    assert list(model.state_dict()) == list(twin.state_dict())


def test_fewer_bytes_are_kept_for_backward(pair, monkeypatch):
    model, twin, inputs = pair
    assert kept_for_backward(twin, inputs) < 0.7 * kept_for_backward(model, inputs)
    monkeypatch.setattr("ampsweep.models.activation_checkpointing.checkpoint", None)
    with torch.no_grad():
        twin(inputs)  # nothing is checkpointed where no backward follows


class Net(CheckpointedModel):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))

    def forward(self, x):
        return self.run(self.block, x)


def test_a_compiled_model_updates_running_statistics_once():
    torch.manual_seed(0)
    eager, images = Net(), torch.randn(2, 1, 8, 8)
    model = copy.deepcopy(eager)
    model.gradient_checkpointing_enable()
    train(eager, images)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), images)
    torch.testing.assert_close([*eager.buffers()], [*model.buffers()])
    torch.testing.assert_close([p.grad for p in eager.parameters()], [p.grad for p in model.parameters()])
