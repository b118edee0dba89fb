"""Contrastive learning with in-batch negatives: two views of each digit, as SimCLR has them (Chen et al. 2020)."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from zoo import OneLoss


class TwoViews(Dataset):
    """Two views (64,) of a digit: shifted by what ``random`` draws, with noise that NumPy and torch draw."""

    def __init__(self, first, last):
        self.images = (load_digits().images[first:last] / 16).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, item):
        return self.view(item), self.view(item)

    def view(self, item):
        shifted = np.roll(self.images[item], random.randint(-1, 1), axis=1)
        noisy = shifted + np.random.normal(0, 0.05, shifted.shape).astype(np.float32)
        return torch.from_numpy(noisy).flatten() * (torch.rand(64) > 0.1)


class Encoder(nn.Sequential):
    """Digits (B, 64) to points (B, size)."""

    def __init__(self, width=64, size=16):
        super().__init__(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, size))


class InBatchNegatives(OneLoss):
    """The symmetric InfoNCE loss: each view has to find its partner among all of the batch."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = (F.normalize(model(views), dim=-1) for views in batch)
        similarities = first @ second.T / 0.2
        partners = torch.arange(len(similarities), device=similarities.device)
        return (F.cross_entropy(similarities, partners) + F.cross_entropy(similarities.T, partners)) / 2
