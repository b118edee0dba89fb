"""Models whose faults come late."""

import torch
from torch import nn


class Late(nn.Module):
    """A layer whose output outgrows float16 after so many steps, and stays where it is in value."""

    def __init__(self, width: int, at_step: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.at_step = at_step
        self.register_buffer("num_steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.num_steps += 1
        factor = 1.0 if self.num_steps < self.at_step else 1e6
        return self.layer(x * factor) / factor


class OverflowsLate(nn.Module):
    """A small network around such a layer."""

    def __init__(self, at_step: int, width: int = 64) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.late = Late(width, at_step)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(torch.relu(self.late(torch.relu(self.before(x)))))
