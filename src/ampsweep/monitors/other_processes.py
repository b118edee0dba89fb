"""Use of the device by other processes: before a run begins, and during the steps that count."""

import os
import time
from dataclasses import replace
from typing import Final

import torch

from ampsweep.monitors.contamination import Evidence, computing, foreign_load, judge
from ampsweep.monitors.nvml import NvmlDevice, told_by_nvml
from ampsweep.monitors.processors import ProcessorUse, ProcessorWindow, nobody_else_runs, own_processes
from ampsweep.record.parts import Contamination
from ampsweep.text import GIB

MAX_FOREIGN_GPU_GIB: Final = 1.0
"""Most memory of others on an idle GPU: a display and its windows hold some hundred MiB."""
MAX_FOREIGN_UTILIZATION_PCT: Final = 10.0
"""Most utilization of an idle GPU: redrawing a display takes some percent."""

_CPU_WINDOW_S: Final = 0.1
_UTILIZATION_PERIOD_S: Final = 1.0
"""The driver's utilization covers a period of up to this length, in which a run may have just ended."""


class UseBeforeRun:
    """Use of `device` by others before a run. Construct it before the run allocates memory there.

    A CPU is observed from then until `sentence` is called, a GPU at once, and for a second if it seems busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._busy: str | None = None
        self._window: ProcessorWindow | None = None
        if device.type == "cpu":
            self._began_s = time.perf_counter()
            self._window = None if nobody_else_runs() else ProcessorWindow()
        elif device.type == "cuda":
            own_gib = torch.cuda.memory_reserved(device) / GIB
            use = told_by_nvml(device, lambda nvml: _busy_gpu(nvml, own_gib))
            self._busy = None if use is None else f"{device} was in use before the run began: {use}"

    def sentence(self) -> str | None:
        """One sentence on who used the device, or None; the same at each call.

        Waits until a CPU has been observed for a tenth of a second.
        """
        if self._window is not None:
            time.sleep(max(0.0, self._began_s + _CPU_WINDOW_S - time.perf_counter()))
            load, self._window = foreign_load(self._window.use()), None
            self._busy = None if load is None else f"the CPU was busy before the run began: {load}"
        return self._busy


def _busy_gpu(nvml: NvmlDevice, own_gib: float) -> str | None:
    seen = nvml.compute_processes() or frozenset()
    is_known_by_its_id = own_gib == 0 or os.getpid() in seen
    if is_known_by_its_id and (others := seen - own_processes()):
        return f"{computing(others)} on it"
    foreign_gib = (nvml.held_gib() or 0.0) - (nvml.process_gib() or own_gib)
    if foreign_gib > MAX_FOREIGN_GPU_GIB:
        return f"others held {foreign_gib:.1f} GiB of its memory"
    for pause_s in (0.0, _UTILIZATION_PERIOD_S):
        time.sleep(pause_s)
        utilization_pct = nvml.readings().get("device/utilization_pct", 0.0)
        if utilization_pct <= MAX_FOREIGN_UTILIZATION_PCT:
            return None
    return f"it was at work {utilization_pct:.0f}% of the time"


class UseDuringRun:
    """Use of the device by others from the end of warm-up to `end`; beginning and ending cost milliseconds each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._window: ProcessorWindow | None = None
        self._host: ProcessorUse | None = None
        self._others: frozenset[int] | None = frozenset()

    def after_warmup(self) -> None:
        """Begin to observe: warm-up is over, and the steps that count begin."""
        self._see_others()
        self._window = ProcessorWindow()

    def pause(self) -> None:
        """Pause: the run does something other than steps, and may wait for a disk."""
        if self._window is not None:
            self._window.pause()

    def resume(self) -> None:
        if self._window is not None:
            self._window.resume()

    def end(self) -> None:
        if self._window is not None:
            self._host = self._window.use()
            self._see_others()

    def verdict(self, evidence: Evidence) -> Contamination:
        """The verdict on the observed steps, with further evidence from elsewhere."""
        return judge(self._device, replace(evidence, host=self._host, others=self._others))

    def _see_others(self) -> None:
        """Note other processes that compute on the GPU; None from then on if the driver does not even show this one."""
        if self._device.type == "cpu" or self._others is None:
            return
        seen = told_by_nvml(self._device, NvmlDevice.compute_processes) or frozenset()
        self._others = self._others | (seen - own_processes()) if os.getpid() in seen else None
