"""Regression on a table: the surface of Friedman 1991, with noise."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Mlp(nn.Sequential):
    def __init__(self, width=64):
        first = nn.Linear(10, width), nn.LayerNorm(width), nn.GELU()
        super().__init__(*first, nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


class Friedman(TensorDataset):
    """Ten uniform features, of which five matter; targets (1,) are scaled to about one."""

    def __init__(self, num_items, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(num_items, 10, generator=generator)
        y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
        super().__init__(x, (y[:, None] + torch.randn(num_items, 1, generator=generator) - 14) / 5)
