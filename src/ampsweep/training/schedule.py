"""The learning rate as a function of applied steps: a skipped step does not advance it."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampsweep.config.schema import SchedulerConfig


class Schedule:
    """Sets an optimizer's learning rate before each step.

    Args:
        optimizer: the optimizer; the current `lr` of its groups are the peak learning rates.
        num_steps: length of the run in steps.
        on_device: the number of applied steps will arrive as a tensor on the device, because the host does not know
            it (fused optimizer under a GradScaler); the learning rate then is a tensor there too, and setting it
            never waits. A constant schedule stays a plain number either way.
    """

    def __init__(
        self, config: SchedulerConfig, optimizers: Sequence[torch.optim.Optimizer], num_steps: int, *, on_device: bool
    ) -> None:
        self.config = config
        self.num_steps = num_steps
        self._optimizers = optimizers  # not their groups: loading a state replaces the list
        self._peaks = [float(group["lr"]) for group in self._groups()]
        self._table: Tensor | None = None
        self.is_constant = config.name == "constant" and config.num_warmup_steps == 0
        """True if the learning rate never changes, so that there is nothing to set."""
        if on_device and not self.is_constant:
            device = optimizers[0].param_groups[0]["params"][0].device
            factors = [self.factor(step) for step in range(num_steps)]
            self._table = torch.tensor(factors, dtype=torch.float32, device=device)
            for group, peak in zip(self._groups(), self._peaks, strict=True):
                group["lr"] = torch.tensor(peak, dtype=torch.float32, device=device)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def factor(self, applied_steps: int) -> float:
        """Share of the peak learning rate for the step taken after `applied_steps` applied ones."""
        warmup, floor = self.config.num_warmup_steps, self.config.min_lr_ratio
        if applied_steps < warmup:
            return (applied_steps + 1) / (warmup + 1)
        if self.config.name == "constant":
            return 1.0
        progress = min(1.0, (applied_steps - warmup) / max(1, self.num_steps - warmup))
        if self.config.name == "linear":
            return floor + (1 - floor) * (1 - progress)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    def set(self, applied_steps: int | Tensor) -> None:
        """Set the learning rate of the next step; `applied_steps` is a 0-dim int64 tensor where `on_device`."""
        if self.is_constant:
            return
        if self._table is None:
            if isinstance(applied_steps, int):
                factor = self.factor(applied_steps)
                for group, peak in zip(self._groups(), self._peaks, strict=True):
                    group["lr"] = peak * factor
            return
        index = torch.as_tensor(applied_steps, device=self._table.device).clamp(max=self.num_steps - 1)
        on_device = self._table.index_select(0, index.reshape(1)).squeeze(0)
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            torch.mul(on_device, peak, out=group["lr"])

    def learning_rate(self) -> float | Tensor:
        """Learning rate of the first group: a number, or a 0-dim tensor on the device if it is kept there."""
        value: float | Tensor = self._optimizers[0].param_groups[0]["lr"]
        return value.detach() if isinstance(value, Tensor) else value
