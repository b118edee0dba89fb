"""The ResNets are torchvision's, and the MLP is the network of the PyTorch AMP recipe."""

import pytest
import torch
from torch import nn

from ampsweep.models.mlp import MLP
from ampsweep.models.resnet import ResNet


def test_a_resnet_is_torchvisions():
    for depth, num_parameters in ((18, 11_689_512), (50, 25_557_032)):
        with torch.device("meta"):
            model = ResNet(depth, num_classes=1000, in_channels=3, image_size=224)
        assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    names = set(model.state_dict())
    assert len(names) == 320  # torchvision.models.resnet50().state_dict()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= names
    block = model.layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


@pytest.mark.parametrize(("image_size", "last_side"), [(8, 1), (64, 8), (65, 3), (224, 7)])
def test_the_stem_fits_the_image(image_size, last_side):
    last = []
    with torch.device("meta"):
        model = ResNet(18, num_classes=10, in_channels=1, image_size=image_size)
        model.layer4[-1].register_forward_hook(lambda module, inputs, output: last.append(output.shape))
        assert model(torch.empty(2, 1, image_size, image_size)).shape == (2, 10)
    assert last == [(2, 512, last_side, last_side)]


def test_it_keeps_the_layout_and_the_dtypes_asked_for():
    torch.manual_seed(0)
    model, images, inside = ResNet(18, num_classes=10, in_channels=3, image_size=8), torch.randn(2, 3, 8, 8), []
    assert model.layer3[0].conv2.weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02), "He's spread"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images).dtype is torch.bfloat16
    assert model.bn1.running_mean.dtype is torch.float32, "normalization stays in full precision"
    assert model.bn1.running_mean.any()
    expected = model.eval()(images)
    model.layer1[0].register_forward_hook(lambda module, inputs, output: inside.append(output))
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), expected)
    assert inside[0].is_contiguous(memory_format=torch.channels_last)


def test_impossible_sizes_are_refused():
    resnet = {"depth": 18, "num_classes": 10, "in_channels": 3, "image_size": 32}
    mlp = {"in_features": 5, "hidden_size": 7, "out_features": 3, "num_layers": 3}
    for build, sizes, sentence in (
        (ResNet, resnet | {"depth": 34}, "depth must be 18 or 50, got 34"),
        *((ResNet, resnet | {"image_size": size}, f"from 8 to 224, got {size}") for size in (7, 225)),
        *((ResNet, resnet | {name: 0}, f"{name} must be at least 1") for name in ("num_classes", "in_channels")),
        *((MLP, mlp | {name: 0}, f"{name} must be at least 1, got 0") for name in mlp),
    ):
        with pytest.raises(ValueError, match=sentence):
            build(**sizes)


def test_the_mlp_is_the_recipes_network():
    with torch.device("meta"):
        model = MLP(in_features=4096, hidden_size=4096, out_features=4096, num_layers=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * (4096 * 4096 + 4096)
    torch.manual_seed(0)
    model = MLP(6, 7, 3, num_layers=3)
    torch.manual_seed(0)
    layers = nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3)
    recipe, x = nn.Sequential(nn.Flatten(), *layers), torch.randn(4, 2, 3)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), recipe.parameters(), strict=True))
    assert torch.equal(model(x), recipe(x))
    assert [parameter.shape for parameter in MLP(5, 7, 3, num_layers=1).parameters()] == [(3, 5), (3,)]
