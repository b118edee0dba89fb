"""Counts of the steps that a gradient scaler skipped and applied, without reading from the device."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

_UNCOUNTED_AT_MOST: Final = 64
"""Most updates between two counts: few enough scales to keep in memory, enough to make counting rare."""


class ScaleMonitor:
    """Counts skipped and applied steps from the scale after each update; all of it stays on the device. A step was
    skipped, by at least one optimizer, if the scale shrank. That is exact while the scale is a normal float32: below
    2**-126 it may be too small to shrink further."""

    def __init__(self, device: torch.device, *, init_scale: float, growth_interval: int) -> None:
        self._num_observed = 0
        self._init_scale, self._growth_interval = init_scale, growth_interval
        self._scales: list[Tensor] = []  # before the first uncounted update, and after each; empty before any
        self._before: Tensor | None = None  # the scale of the last counted step
        self._ends: list[int] = []  # the numbers of uncounted updates after which a step ended
        self._skipped_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int64, device=device)

    def observe(self, scale: Tensor, *, ends_step: bool = True) -> None:
        """Count an attempted step; `scale`, 0-dim float32 on the device, is the scale after `GradScaler.update`.
        `scaler.scale(torch.ones((), device=device))` returns it without a synchronization. A step with several updates
        (`ends_step` is True for the last) is skipped if any optimizer skipped its own."""
        if not self._scales:
            self._scales.append(torch.full_like(scale, self._init_scale))
        self._scales.append(scale)
        if ends_step:
            self._num_observed += 1
            self._ends.append(len(self._scales) - 1)
            if len(self._scales) > _UNCOUNTED_AT_MOST:
                self._count()

    def _skipped(self) -> tuple[Tensor, Tensor]:
        """Whether each uncounted update, and each step that they ended, was skipped: (updates,) and (steps,), bool."""
        num_updates = self._ends[-1]
        scales = torch.stack(self._scales[: num_updates + 1])
        of_updates = scales[1:] < scales[:-1]
        if len(self._ends) == num_updates:
            return of_updates, of_updates
        firsts = [0, *self._ends[:-1]]
        return of_updates, torch.stack(
            [of_updates[first:end].any() for first, end in zip(firsts, self._ends, strict=True)]
        )

    def _count(self) -> None:
        """Bring the counts up to date: a skipped step sets the growth tracker to zero, and so does a full interval."""
        if not self._ends:
            return
        of_updates, of_steps = self._skipped()
        self._skipped_steps += of_steps.sum()
        num_updates = len(of_updates)
        num_to_last_skip = (of_updates * torch.arange(1, num_updates + 1, device=of_updates.device)).amax()
        grown = torch.where(num_to_last_skip > 0, -num_to_last_skip, self._growth_tracker) + num_updates
        self._growth_tracker = grown % self._growth_interval
        self._before = self._scales[num_updates - 1]
        self._scales, self._ends = self._scales[num_updates:], []

    @property
    def applied_steps(self) -> Tensor:
        self._count()
        return self._num_observed - self._skipped_steps

    def tensors(self) -> dict[str, Tensor]:
        """The last step's scale and the counts so far, 0-dim on the device (counts: int64); empty before any step."""
        self._count()
        if self._before is None:
            return {}
        return {
            "amp/scale": self._before,
            "amp/growth_tracker": self._growth_tracker,
            "amp/skipped_steps": self._skipped_steps.clone(),
            "amp/applied_steps": self.applied_steps,
        }

    def num_last_skipped(self) -> int:
        """Number of the latest uncounted steps that were all skipped; waits for the device."""
        skipped = self._skipped()[1].tolist() if self._ends else []
        return next((number for number, is_skipped in enumerate(reversed(skipped)) if not is_skipped), len(skipped))

    def state_dict(self) -> dict[str, int]:
        self._count()
        return {
            "num_observed": self._num_observed,
            "skipped_steps": int(self._skipped_steps),
            "growth_tracker": int(self._growth_tracker),
        }

    def load_state_dict(self, state: Mapping[str, int], scale: Tensor) -> None:
        """Continue counting from a `state_dict`, at the scaler's current scale."""
        self._num_observed, self._scales, self._ends = state["num_observed"], [scale], []
        self._skipped_steps.fill_(state["skipped_steps"])
        # A tracker beyond the interval starts again, as in `Precision.load_state_dict`.
        self._growth_tracker.fill_(state["growth_tracker"] % self._growth_interval)
