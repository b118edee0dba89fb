"""A model of a user's own with an operator of their own."""

import torch
from torch import Tensor, nn


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


doubled.register_autograd(lambda _, gradient: 2 * gradient)


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        doubled_: Tensor = doubled(x)
        return doubled_


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(64, 32), Doubling(), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.twice(self.first(images.flatten(1))))
        return logits
