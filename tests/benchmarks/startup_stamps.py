"""The benchmark's model, which notes when its training took its first and its last step."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from workload import Net

NUM_STEPS = 20


class StampedNet(Net):
    """Writes `first-PID` and `last-PID` to the directory that STAMPS names: seconds since the epoch.

    The stamps come after the optimizer's step, so that nothing of it is left to be imported or allocated.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden)
        self._num_steps_taken: int | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        is_real = inputs.device.type != "meta" and type(next(self.parameters())) is nn.Parameter
        trains = torch.is_grad_enabled() and is_real  # neither a check of the config nor a prediction, on fake tensors
        if self._num_steps_taken is None and trains:
            self._num_steps_taken = 0
            register_optimizer_step_post_hook(self._stamp)
        return super().forward(inputs)

    def _stamp(self, *_: Any) -> None:
        assert self._num_steps_taken is not None
        self._num_steps_taken += 1
        name = {1: "first", NUM_STEPS: "last"}.get(self._num_steps_taken)
        if name is not None:
            (Path(os.environ["STAMPS"]) / f"{name}-{os.getpid()}").write_text(repr(time.time()), encoding="ascii")
