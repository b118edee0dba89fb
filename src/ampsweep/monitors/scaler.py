"""Counts of the steps that a gradient scaler skipped and applied, without reading from the device."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

_UNCOUNTED_AT_MOST: Final = 64
"""Most steps between two updates of the growth tracker: few enough to keep in memory, enough to make updates rare."""


class ScaleMonitor:
    """Counts skipped and applied steps from the scale after each update; all of it stays on the device. A step was
    skipped, by at least one optimizer, if the scale shrank. That is exact while the scale is a normal float32: below
    2**-126 it may be too small to shrink further."""

    def __init__(self, device: torch.device, *, init_scale: float, growth_interval: int) -> None:
        self._num_observed = 0
        self._init_scale, self._growth_interval = init_scale, growth_interval
        self._scale: Tensor | None = None  # the scale of the last step; None before the first
        self._next_scale: Tensor | None = None
        self._skipped_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int64, device=device)
        self._uncounted: list[Tensor] = []
        """A flag for each update since `_growth_tracker` was counted, True if an optimizer skipped its step."""
        self._steps: list[Tensor] = []  # the flags by step instead of by update
        self._skipped_so_far: Tensor | None = None  # the flag of a step with several updates, until the last

    def observe(self, scale: Tensor, *, ends_step: bool = True) -> None:
        """Count an attempted step; `scale`, 0-dim float32 on the device, is the scale after `GradScaler.update`.
        `scaler.scale(torch.ones((), device=device))` returns it without a synchronization. A step with several updates
        (`ends_step` is True for the last) is skipped if any optimizer skipped its own."""
        before = torch.full_like(scale, self._init_scale) if self._next_scale is None else self._next_scale
        self._scale, self._next_scale = before, scale
        skipped = scale < before
        self._uncounted.append(skipped)
        if self._skipped_so_far is not None:
            skipped = skipped | self._skipped_so_far
        self._skipped_so_far = None if ends_step else skipped
        if ends_step:
            self._num_observed += 1
            self._skipped_steps += skipped
            self._steps.append(skipped)
        if len(self._uncounted) >= _UNCOUNTED_AT_MOST:
            self._count_growth()

    def _count_growth(self) -> None:
        """Bring the growth tracker up to date: a skipped step sets it to zero, and so does a full interval."""
        if not self._uncounted:
            return
        skipped, self._uncounted, self._steps = torch.stack(self._uncounted), [], []
        num_steps = len(skipped)
        num_to_last_skip = (skipped * torch.arange(1, num_steps + 1, device=skipped.device)).amax()
        grown = torch.where(num_to_last_skip > 0, -num_to_last_skip, self._growth_tracker) + num_steps
        self._growth_tracker = grown % self._growth_interval

    @property
    def applied_steps(self) -> Tensor:
        return self._num_observed - self._skipped_steps

    def tensors(self) -> dict[str, Tensor]:
        """The last step's scale and the counts so far, 0-dim on the device (counts: int64); empty before any step."""
        if self._scale is None:
            return {}
        self._count_growth()
        return {
            "amp/scale": self._scale,
            "amp/growth_tracker": self._growth_tracker,
            "amp/skipped_steps": self._skipped_steps.clone(),
            "amp/applied_steps": self.applied_steps,
        }

    def num_last_skipped(self) -> int:
        """Number of the latest steps since `tensors` that were all skipped; waits for the device."""
        skipped = torch.stack(self._steps).tolist() if self._steps else []
        return next((number for number, is_skipped in enumerate(reversed(skipped)) if not is_skipped), len(skipped))

    def state_dict(self) -> dict[str, int]:
        self._count_growth()
        return {
            "num_observed": self._num_observed,
            "skipped_steps": int(self._skipped_steps),
            "growth_tracker": int(self._growth_tracker),
        }

    def load_state_dict(self, state: Mapping[str, int], scale: Tensor) -> None:
        """Continue counting from a `state_dict`, at the scaler's current scale."""
        self._num_observed, self._next_scale = state["num_observed"], scale
        self._skipped_steps.fill_(state["skipped_steps"])
        # A tracker beyond the interval starts again, as in `Precision.load_state_dict`.
        self._uncounted.clear()
        self._steps.clear()
        self._growth_tracker.fill_(state["growth_tracker"] % self._growth_interval)
