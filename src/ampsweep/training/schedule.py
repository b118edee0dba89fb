"""The learning rate as a function of applied steps: a skipped step does not advance it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsweep.training.build.learning_rates import build_rates
from ampsweep.training.build.optimizer import is_fused


class Schedule:
    """Sets the learning rates of all optimizers before each step.

    Args:
        config: `scheduler.*` of a config: a shape's name and settings, or a `_target_` and its arguments.
        optimizers: the optimizers; the current `lr` of their groups are the peak learning rates.
        num_steps: length of the run in steps.
        on_device: the number of applied steps will arrive as a tensor on the device, because the host does not know
            it (fused optimizer under a GradScaler); the learning rate then is a tensor there too, and setting it
            never waits. A constant schedule stays a plain number either way.

    Raises:
        UserError: the scheduler is refused.
    """

    def __init__(
        self, config: Mapping[str, Any], optimizers: Sequence[Optimizer], num_steps: int, *, on_device: bool
    ) -> None:
        self.num_steps = num_steps
        self._optimizers = [*optimizers]  # not their groups: loading a state replaces the lists
        self._waits = [not is_fused(optimizer) for optimizer in optimizers for _ in optimizer.param_groups]
        """True for a group whose optimizer waits for the device anyway, to know whether to step: it gets a number."""
        self._rates = build_rates(config, self._optimizers, num_steps)
        self._tables: list[Tensor] = []
        """The learning rate of every step, for each group that the device sets; groups with equal ones share it."""
        self.is_constant = self._rates is None
        """True if the learning rate never changes, so that there is nothing to set."""
        if on_device and self._rates is not None:
            devices = [group["params"][0].device for group in self._groups()]
            self._tables = self._rates.tables(num_steps, devices)
            for group, table, waits in zip(self._groups(), self._tables, self._waits, strict=True):
                if not waits:
                    group["lr"] = table[0].clone()

    def set(self, applied_steps: int | Tensor) -> None:
        """Set the learning rate of the next step; `applied_steps` is a 0-dim int64 tensor where `on_device`."""
        if self._rates is None:
            return
        if self._tables:
            index = torch.as_tensor(applied_steps, device=self._tables[0].device).clamp(max=self.num_steps - 1)
            for group, table, waits in zip(self._groups(), self._tables, self._waits, strict=True):
                if waits:
                    _put(group, float(table[index]))
                else:
                    torch.take(table, index, out=group["lr"])
            return
        assert isinstance(applied_steps, int), "the host knows the number of applied steps"
        for group, rate in zip(self._groups(), self._rates(applied_steps), strict=True):
            _put(group, rate)

    def learning_rate(self) -> float | Tensor | None:
        """Learning rate of the first group: a number, or a 0-dim tensor on the device if it is kept there.

        None for an optimizer that has none, as it makes its own.
        """
        value: float | Tensor | None = self._optimizers[0].param_groups[0].get("lr")
        if not isinstance(value, Tensor):
            return value
        is_on_device = bool(self._tables) and not self._waits[0]
        return value.detach() if is_on_device or not value.is_cpu else float(value)

    def values(self) -> dict[str, float | Tensor]:
        """The learning rate by its metric key; empty for an optimizer that makes its own."""
        rate = self.learning_rate()
        return {} if rate is None else {"train/lr": rate}

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups


def _put(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group: one that its optimizer keeps in a tensor, as compiled steps do, is filled."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
