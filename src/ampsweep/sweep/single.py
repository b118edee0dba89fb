"""A single run, trained in this process: checked, and only then given a directory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.modes import arm_label
from ampsweep.config.schema import Config
from ampsweep.data.base import Data
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.other_processes import FirstLook
from ampsweep.precision.precision import unsupported_reason
from ampsweep.record.outcome import OutOfMemory
from ampsweep.run.early_end import end_unsupported, end_without_memory
from ampsweep.run.lifecycle import run_on
from ampsweep.run.request import RunRequest
from ampsweep.sweep.checks import build_checked_data, check_checkpoint, check_parts, check_services
from ampsweep.sweep.too_large import too_large
from ampsweep.tracing.memory_limit import MemoryLimit
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.training.out_of_memory import out_of_memory


class SingleRun:
    """One run of `config` on `device`, checked and ready to train.

    Args:
        resume: what `resume=` means: a checkpoint, or a run directory with one.

    Raises:
        UserError: the device cannot do it (unless an agent asks for it), a part refuses its settings, or the checkpoint
            does not fit.
    """

    def __init__(
        self, config: Config, device: torch.device, resume: Path | None, wandb: WandbAddress | None = None
    ) -> None:
        self._unsupported = unsupported_reason(config.precision, device)
        if self._unsupported is not None and not is_agents_run():
            raise UserError(f"precision={arm_label(config.precision)}: {self._unsupported}")
        check_services(config, device, wandb)
        self._first_look, self._device = FirstLook(device), device
        self._limit = MemoryLimit(device, config.trainer.memory_limit_gib)
        self._data: Data | None = None
        self._oom: OutOfMemory | None = None
        self.too_large: str | None = None
        """One sentence where the run is predicted not to fit its device."""
        self._build_data(config)
        self._checkpoint = None if resume is None else check_checkpoint(config, resume)

    def train(self, request: RunRequest, send: Callable[[object], None]) -> None:
        """Train in the request's directory; a stop signal ends it with a checkpoint.

        What the device cannot do is an outcome where it comes from an agent, whose sweep goes on all the same.
        """
        if self._unsupported is not None:
            end_unsupported(request, self._device, self._unsupported, send)
            return
        if self._oom is not None:
            end_without_memory(request, self._device, self._oom, send)
            return
        request = replace(request, checkpoint=self._checkpoint)
        with StopRequest() as stop:
            run_on(
                self._device,
                request,
                data=self._data,
                limit=self._limit,
                first_look=self._first_look,
                send=send,
                stop=stop,
            )

    def _build_data(self, config: Config) -> None:
        """Build it on the device and check the parts with it. Where there is no memory for it, the run ends so."""
        try:
            with self._limit:
                self._data = build_checked_data(config, self._device)
        except (RuntimeError, MemoryError, OSError) as error:
            self._oom = out_of_memory(error, self._device, self._limit)
            if self._oom is None:
                raise
        else:
            checked = check_parts(config, self._device, self._data)
            self.too_large = too_large(config, self._device, checked)
            if self.too_large is not None and config.predict.must_fit:
                raise UserError(self.too_large)
