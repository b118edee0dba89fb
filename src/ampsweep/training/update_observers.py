"""Observers of an optimizer's update, which see gradients and parameters before and after it."""

import torch

from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.precision import Precision


class UpdateObserver:
    """Called around each part of an update, with the optimizer. By default the methods do nothing."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the gradients are complete, still scaled if there is a scaler."""

    def after_unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Called between unscaling and clipping, unless the trainer does neither."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called right before the optimizer's step."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after the optimizer's step, taken or skipped."""


class WatchedUpdates(UpdateObserver):
    """Shows a watch the gradients and updates of observed steps, and the gradients that make a scaler skip a step.

    On an accelerator the latter are noted in observed steps only, since the host must wait to know of a skipped step.
    """

    def __init__(self, watch: NumericsWatch, precision: Precision) -> None:
        self._watch, self._precision = watch, precision
        self._is_host = precision.device.type == "cpu"
        self._is_noted = False

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        self._is_noted = False
        if self._watch.is_looking:
            self._watch.see_gradients(optimizer)

    def after_unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self._note_skipped(optimizer)  # before clipping, which spreads NaN over all gradients
        self._is_noted = True

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._watch.is_looking:
            self._watch.before_update(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._is_noted:
            self._note_skipped(optimizer)
        if self._watch.is_looking:
            self._watch.after_update(is_applied=not self._is_skipped(optimizer))

    def _note_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        if (self._is_host or self._watch.is_looking) and self._is_skipped(optimizer):
            self._watch.note_nonfinite(optimizer)

    def _is_skipped(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(map(bool, self._precision.found_nonfinite(optimizer)))
