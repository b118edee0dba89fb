"""Operations told apart by where and how they ran: of convolutions, and a second time."""

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
    assert found.recomputed_flops == found.forward_flops == {"float32": 2 * OF_LAYER}
    assert found.num_repeated >= 4
    assert found.convolution_flops == {"float32": 6 * OF_LAYER}, "what is done again is no work of the model's"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_without_matmuls_is_seen_too(use_reentrant):
    found = traced(Checkpointed(use_reentrant, nn.PReLU(4), nn.Sigmoid()), torch.randn(IMAGES, requires_grad=True))
    assert found.recomputed_flops == {}
    assert found.num_repeated > 0


def test_without_a_checkpoint_nothing_is_done_again():
    found = traced(nn.Sequential(layer(), nn.ReLU()), torch.randn(IMAGES, requires_grad=True))
    assert (found.num_repeated, found.recomputed_flops) == (0, {})
