"""Counts of the steps that a gradient scaler skipped and applied, without waiting for the device in a step."""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import and_
from typing import Final

import torch
from torch import Tensor

_PACKED: Final = 64  # steps whose scales move into one tensor, as each by itself takes 512 bytes of an accelerator


class ScaleMonitor:
    """Counts skipped and applied steps from the scale after each update. Scales on a device stay there until they are
    read, all together. A step was skipped, by at least one optimizer, if the scale shrank. That is exact while the
    scale is a normal float32: below 2**-126 it may be too small to shrink further.

    Args:
        device: where `applied_steps` can be counted as well; None: nowhere.
    """

    def __init__(self, init_scale: float, growth_interval: int, *, device: torch.device | None = None) -> None:
        self._growth_interval = growth_interval
        self._updates: list[Tensor | float] = []  # the scale after each update of the current step
        self._unread: list[list[Tensor | float]] = []  # by step since the last reading; empty: a row ended
        self._num_packed = 0  # of these
        self._rows: list[dict[str, float]] = []
        self._scale = self._scale_before = torch.tensor(init_scale, dtype=torch.float32).item()
        self._num_skipped = self._num_applied = self._num_last_skipped = self._growth_tracker = 0
        self._applied = None if device is None else torch.zeros((), dtype=torch.int64, device=device)
        self._num_in_applied = 0  # of the unread steps
        self._last: Tensor | float = self._scale  # after these

    def observe(self, scale: Tensor | float, *, ends_step: bool = True) -> None:
        """Note the scale after `GradScaler.update`: a number, or 0-dim float32, as `scaler.scale(torch.ones(()))`
        returns it without a synchronization. A step with several updates ends with the last one, and is skipped if any
        optimizer skipped its own."""
        self._updates.append(scale)
        if ends_step:
            self._unread.append(self._updates)
            self._updates = []
            if isinstance(scale, Tensor) and len(self._unread) >= self._num_packed + _PACKED:
                self._pack()

    def _pack(self) -> None:
        loose = self._unread[self._num_packed :]
        on_device = [scale for updates in loose for scale in updates if isinstance(scale, Tensor)]  # all
        packed = iter(torch.stack(on_device).unbind())
        for updates in loose:
            updates[:] = [next(packed) for _ in updates]
        self._num_packed = len(self._unread)

    def end_row(self) -> None:
        self._unread.append([])

    def read(self) -> None:
        """Count the steps so far; waits for the device."""
        unread, self._unread, self._num_packed = self._unread, [], 0
        scales = [*chain.from_iterable(unread)]  # all on the device, or all numbers
        on_device = [scale for scale in scales if isinstance(scale, Tensor)]
        numbers = iter(torch.stack(on_device).tolist() if on_device else map(float, scales))
        for updates in unread:
            if updates:
                self._count([next(numbers) for _ in updates])
            else:
                self._rows.append(self._figures())
        self._num_in_applied, self._last = 0, self._scale
        if self._applied is not None:
            self._applied.fill_(self._num_applied)

    def _count(self, scales: Sequence[float]) -> None:
        """Count a step; a skipped update sets the growth tracker to zero, and so does a full interval."""
        is_skipped = False
        for scale in scales:
            has_shrunk = scale < self._scale
            self._growth_tracker = 0 if has_shrunk else (self._growth_tracker + 1) % self._growth_interval
            self._scale_before, self._scale = self._scale, scale
            is_skipped |= has_shrunk
        self._num_skipped += is_skipped
        self._num_applied += not is_skipped
        self._num_last_skipped = self._num_last_skipped + 1 if is_skipped else 0

    def _figures(self) -> dict[str, float]:
        return {
            "amp/scale": self._scale_before,
            "amp/growth_tracker": float(self._growth_tracker),
            "amp/skipped_steps": float(self._num_skipped),
            "amp/applied_steps": float(self._num_applied),
        }

    def rows(self) -> list[dict[str, float]]:
        """The scale of the last step, and counts up to it, for each row since the last call; waits for the device."""
        self.read()
        rows, self._rows = self._rows, []
        return rows

    def applied_on_device(self) -> Tensor:
        """Applied steps so far, 0-dim int64 on the device, without waiting for it."""
        assert self._applied is not None, "no device was given"
        for updates in filter(None, self._unread[self._num_in_applied :]):
            self._applied += reduce(and_, [after >= before for before, after in pairwise([self._last, *updates])])
            self._last = updates[-1]
        self._num_in_applied = len(self._unread)
        return self._applied

    def num_last_skipped(self) -> int:
        """Number of the latest steps that were all skipped; waits for the device."""
        self.read()
        return self._num_last_skipped

    def state_dict(self) -> dict[str, int]:
        self.read()
        return {
            "num_observed": self._num_skipped + self._num_applied,
            "skipped_steps": self._num_skipped,
            "growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: Mapping[str, int], scale: Tensor | float) -> None:
        """Continue counting from a `state_dict`, at the scaler's current scale."""
        self._updates, self._unread, self._num_packed = [], [], 0
        self._num_skipped, self._scale = state["skipped_steps"], float(scale)
        self._num_applied = state["num_observed"] - self._num_skipped
        # A tracker beyond the interval starts again, as in `Precision.load_state_dict`.
        self._growth_tracker = state["growth_tracker"] % self._growth_interval
        self.read()
