"""Operations told apart by where and how they ran: channels last, and a second time."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.step import trace_step

IMAGES = (2, 4, 6, 6)
OF_LAYER = 2 * (2 * 6 * 6) * 3 * 3 * 4 * 4


def layer(channels=4):
    return nn.Conv2d(channels, 4, 3, padding=1)


def traced(model, x):
    with trace_step(model) as trace:
        model(x).square().mean().backward()
    return trace.result


def last(value):
    return value.to(memory_format=torch.channels_last)


class PutsBack(nn.Module):
    """Gives its second convolution the images as they were."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layer(), layer()

    def forward(self, x):
        return self.second(self.first(x).contiguous())


@pytest.mark.parametrize(
    ("model", "x", "of_all"),
    [
        (last(layer()), last(torch.randn(IMAGES)), 1.0),
        (last(nn.Sequential(layer(), nn.ReLU(), layer())), last(torch.randn(IMAGES)), 1.0),
        (last(PutsBack()), last(torch.randn(IMAGES)), 0.5),
        (layer(), torch.randn(IMAGES), 0.0),
        (layer(), last(torch.randn(IMAGES)), 0.0),
        (last(layer()), torch.randn(IMAGES), 0.0),
    ],
    ids=["last", "two layers", "put back", "first", "weight first", "image first"],
)
def test_a_convolution_is_channels_last_if_both_its_operands_are(model, x, of_all):
    found = traced(model, x)
    num_layers = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    assert found.forward_convolution_flops == {"float32": num_layers * OF_LAYER}
    expected = {"float32": of_all * num_layers * OF_LAYER} if of_all else {}
    assert found.channels_last_flops == expected


def test_where_formats_do_not_differ_nothing_is_proved():
    """With one channel, images and weights lie the same in either format."""
    found = traced(last(layer(channels=1)), last(torch.randn(2, 1, 6, 6)))
    assert found.forward_convolution_flops == found.channels_last_flops == {}
    assert found.convolution_flops == {"float32": 2 * OF_LAYER // 4}


def test_convolutions_in_one_dimension_are_never_channels_last():
    found = traced(nn.Conv1d(4, 4, 3), torch.randn(2, 4, 8))
    assert found.channels_last_flops == {}
    assert sum(found.forward_convolution_flops.values()) > 0


def test_convolutions_are_told_from_matmuls():
    model = nn.Sequential(layer(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3))
    found = traced(model, torch.randn(IMAGES))
    assert found.convolution_flops == {"float32": 2 * OF_LAYER}  # the images need no gradient
    assert found.flops["float32"] == 2 * OF_LAYER + 3 * 2 * 2 * 4 * 6 * 6 * 3


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant, *layers):
        super().__init__()
        self.block, self.use_reentrant = nn.Sequential(*layers), use_reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_is_told_by_what_it_does_first_and_again(use_reentrant):
    x = torch.randn(IMAGES, requires_grad=True)
    found = traced(Checkpointed(use_reentrant, layer(), nn.ReLU(), layer(), nn.ReLU()), x)
    assert found.checkpointed_flops == found.forward_flops == {"float32": 2 * OF_LAYER}
    assert found.repeated_flops == {"float32": 2 * OF_LAYER}
    assert found.num_repeated >= 4
    assert found.convolution_flops == {"float32": 6 * OF_LAYER}, "what is done again is no work of the model's"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_without_matmuls_is_seen_too(use_reentrant):
    found = traced(Checkpointed(use_reentrant, nn.PReLU(4), nn.Sigmoid()), torch.randn(IMAGES, requires_grad=True))
    assert found.repeated_flops == {}
    assert found.num_repeated > 0


def test_without_a_checkpoint_nothing_is_done_again():
    found = traced(nn.Sequential(layer(), nn.ReLU()), torch.randn(IMAGES, requires_grad=True))
    assert (found.num_repeated, found.checkpointed_flops, found.repeated_flops) == (0, {}, {})
