"""A user's model whose run a test holds or burdens: it obeys a file named after its job, once it has begun to learn."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

_AT = 5
"""The step of each process in which it obeys."""


class Ordered(nn.Module):
    """Classifies the digits; has dropout, so random state.

    Args:
        orders: the directory of the orders: `3` for the job 12_3, or `job` for one that is in no array. The order
            `wait` holds the run until it is taken back, with a file `3.obeyed` meanwhile; `eat` takes all memory.
    """

    def __init__(self, orders: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
        self._order = Path(orders) / os.environ.get("SLURM_ARRAY_TASK_ID", "job")
        self._num_steps = 0
        self._eaten: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        if self.training and images.device.type != "meta":
            self._num_steps += 1
            if self._num_steps == _AT and "SLURM_JOB_ID" in os.environ:
                self._obey()
        return self.layers(images)

    def _obey(self) -> None:
        obeyed = self._order.with_name(f"{self._order.name}.obeyed")
        while self._order.exists():
            if self._order.read_text() == "eat":
                self._eaten.append(torch.ones(2**24))
            obeyed.touch()
            time.sleep(0.05)
        obeyed.unlink(missing_ok=True)
