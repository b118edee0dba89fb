"""The MLP is the network of the PyTorch AMP recipe."""

import pytest
import torch
from torch import nn

from ampsweep.models.mlp import MLP


def test_the_recipes_network_has_three_square_layers():
    with torch.device("meta"):
        model = MLP(in_features=4096, hidden_size=4096, out_features=4096, num_layers=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * (4096 * 4096 + 4096)


def test_it_computes_linear_layers_with_a_relu_between():
    torch.manual_seed(0)
    model, x = MLP(5, 7, 3, num_layers=3), torch.randn(4, 5)
    first, second, last = (module for module in model.modules() if isinstance(module, nn.Linear))
    assert torch.equal(model(x), last(second(first(x).relu()).relu()))


def test_one_layer_is_linear():
    model, x = MLP(5, 7, 3, num_layers=1), torch.randn(4, 5)
    torch.testing.assert_close(model(x), x @ model.head.weight.T + model.head.bias)
    assert [parameter.shape for parameter in model.parameters()] == [(3, 5), (3,)]


def test_images_are_flattened():
    assert MLP(64, 8, 10, num_layers=2)(torch.randn(4, 1, 8, 8)).shape == (4, 10)


def test_initial_weights_are_torchs_in_the_recipes_order():
    torch.manual_seed(0)
    model = MLP(5, 7, 3, num_layers=3)
    torch.manual_seed(0)
    recipe = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), recipe.parameters(), strict=True))


def test_it_works_in_pure_bfloat16_and_under_autocast():
    x = torch.randn(4, 5)
    assert MLP(5, 7, 3, 2).to(torch.bfloat16)(x.bfloat16()).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert MLP(5, 7, 3, 2)(x).dtype is torch.float16


@pytest.mark.parametrize("name", ["in_features", "hidden_size", "out_features", "num_layers"])
def test_sizes_below_one_are_refused(name):
    sizes = {"in_features": 5, "hidden_size": 7, "out_features": 3, "num_layers": 3, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        MLP(**sizes)
