"""The ResNets are torchvision's."""

import pytest
import torch

from ampsweep.models.resnet import ResNet


@pytest.mark.parametrize(("depth", "num_parameters"), [(18, 11_689_512), (50, 25_557_032)])
def test_imagenet_sizes_have_torchvisions_parameter_counts(depth, num_parameters):
    with torch.device("meta"):
        model = ResNet(depth, num_classes=1000, in_channels=3, image_size=224)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_parameter_names_are_torchvisions():
    with torch.device("meta"):
        names = set(ResNet(50, num_classes=1000, in_channels=3, image_size=224).state_dict())
    assert len(names) == 320  # torchvision.models.resnet50().state_dict()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias", "fc.bias"} <= names


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(("image_size", "last_side"), [(8, 1), (32, 4), (64, 8), (65, 3), (224, 7)])
def test_the_stem_fits_the_image(depth, image_size, last_side):
    with torch.device("meta"):
        model = ResNet(depth, num_classes=10, in_channels=1, image_size=image_size)
        last = []
        model.layer4.register_forward_hook(lambda module, inputs, output: last.append(output.shape))
        for block in model.layer4:
            block.register_forward_hook(lambda module, inputs, output: last.append(output.shape))
        logits = model(torch.empty(2, 1, image_size, image_size))
    assert logits.shape == (2, 10)
    assert last[-1] == (2, 512 if depth == 18 else 2048, last_side, last_side)


def test_the_stride_of_a_bottleneck_lies_in_its_middle():
    with torch.device("meta"):
        block = ResNet(50, num_classes=10, in_channels=3, image_size=224).layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_convolutions_start_with_hes_spread():
    torch.manual_seed(0)
    weight = ResNet(18, num_classes=10, in_channels=3, image_size=32).layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_it_trains_in_channels_last_and_pure_bfloat16():
    model = ResNet(18, num_classes=10, in_channels=3, image_size=8).to(
        torch.bfloat16, memory_format=torch.channels_last
    )
    images = torch.randn(2, 3, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    inside = []
    model.layer1[0].register_forward_hook(lambda module, inputs, output: inside.append(output))
    model(images).mean().backward()
    assert inside[0].is_contiguous(memory_format=torch.channels_last)
    assert all(parameter.grad.dtype is torch.bfloat16 for parameter in model.parameters())


def test_channels_last_changes_the_layout_alone():
    torch.manual_seed(0)
    model, images = ResNet(18, num_classes=10, in_channels=3, image_size=8).eval(), torch.randn(2, 3, 8, 8)
    expected = model(images)
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), expected)


def test_normalization_stays_in_full_precision_under_autocast():
    model = ResNet(18, num_classes=10, in_channels=1, image_size=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.randn(2, 1, 8, 8))
    logits.float().mean().backward()
    assert logits.dtype is torch.bfloat16
    assert model.bn1.running_mean.dtype is torch.float32
    assert model.bn1.running_mean.any()


def test_an_unknown_depth_is_refused():
    with pytest.raises(ValueError, match="depth must be 18 or 50, got 34"):
        ResNet(34, num_classes=10, in_channels=3, image_size=32)


@pytest.mark.parametrize("image_size", [0, 7, 225])
def test_image_sizes_that_were_not_meant_are_refused(image_size):
    with pytest.raises(ValueError, match=f"image_size must be from 8 to 224, got {image_size}"):
        ResNet(18, num_classes=10, in_channels=3, image_size=image_size)


@pytest.mark.parametrize("name", ["num_classes", "in_channels"])
def test_counts_below_one_are_refused(name):
    sizes = {"num_classes": 10, "in_channels": 3, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ResNet(18, image_size=32, **sizes)
