"""A single run, trained in this process: checked, and only then given a directory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.precision_modes import arm_label
from ampsweep.config.schema import Config
from ampsweep.entries.check import build_checked_data, check_checkpoint, check_parts, check_services
from ampsweep.entries.request import RunRequest
from ampsweep.entries.run import run_on
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.neighbours import busy_before
from ampsweep.precision.support import unsupported_reason
from ampsweep.tracking.wandb_process import WandbAddress


class SingleRun:
    """One run of `config` on `device`, checked and ready to train.

    Args:
        resume: what `resume=` means: a checkpoint, or a run directory with one.

    Raises:
        UserError: the device cannot do it, a part refuses its settings, or the checkpoint does not fit.
    """

    def __init__(
        self, config: Config, device: torch.device, resume: Path | None, wandb: WandbAddress | None = None
    ) -> None:
        if reason := unsupported_reason(config.precision, device):
            raise UserError(f"precision={arm_label(config.precision)}: {reason}")
        check_services(config, device, wandb)
        self._busy = busy_before(device)
        self._data = build_checked_data(config, device)
        check_parts(config, device, self._data)
        self._checkpoint = None if resume is None else check_checkpoint(config, resume)
        self._device = device

    def train(self, request: RunRequest, send: Callable[[object], None]) -> None:
        """Train in the request's directory; a stop signal ends it with a checkpoint."""
        request = replace(request, checkpoint=self._checkpoint)
        with StopRequest() as stop:
            run_on(self._device, request, data=self._data, busy=self._busy, send=send, stop=stop)
