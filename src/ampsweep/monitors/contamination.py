"""Contamination: evidence that something other than the training changed its speed, and the verdict."""

import math
import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import torch

from ampsweep.monitors.nvml import NvmlDevice, query_nvml
from ampsweep.monitors.processors import ProcessorUse, ProcessorWindow, nobody_else_runs, own_processes
from ampsweep.records.sections import Contamination
from ampsweep.text import GIB, plural

MAX_FOREIGN_CORES: Final = 0.25  # of a clean run: services and W&B's helpers take some hundredths of a core
MAX_FOREIGN_SHARE: Final = 0.01  # of all cores: large machines run more services, which matter less there
MIN_OWN_CORES: Final = 0.5  # of a clean run on the CPU, where a thread always computes unless it waits for data
MAX_THREAD_SHARE: Final = 0.75  # of a core, for threads that wait; alone they spin, and have 0.87 and more
MIN_FREE_SHARE: Final = 0.8  # of the free cores, for threads that compute: what waits for data leaves more
MIN_WINDOW_S: Final = 0.5  # the shortest to judge: processor time is counted in ticks of 10 ms
MAX_THROTTLED_PCT: Final = 1.0  # of a clean run: drivers report a slowdown for a moment while clocks change
MAX_FOREIGN_GPU_GIB: Final = 1.0  # on an idle GPU: a display and its windows hold some hundred MiB
MAX_FOREIGN_UTILIZATION_PCT: Final = 10.0  # of an idle GPU: redrawing a display takes some percent
_CPU_WINDOW_S: Final = 0.1
_UTILIZATION_PERIOD_S: Final = 1.0  # the longest that the driver averages over; another run may have just ended


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Observations of a run's surroundings."""

    busy_before: str | None = None
    host: ProcessorUse | None = None  # use of the processors during the steps after warm-up; None without such steps
    others: frozenset[int] | None = frozenset()  # computed on the GPU meanwhile; None if unknown
    data_wait_share: float = 0.0  # share of the steps' time in which the host waited for data
    waits_for_host: bool = False  # the device waited for launches, so that load on the host matters
    num_threads: int = field(default_factory=torch.get_num_threads)  # that compute an operator on the CPU
    throttled_pct: float | None = None  # percent of samples slowed down by heat or protection; None if unknown


def judge(device: torch.device, evidence: Evidence) -> Contamination:
    """The verdict; on a GPU, load counts only if the device waits for its host, and power cap and clocks never."""
    reasons: list[str] = []
    unknown = "no step came after warm-up"  # the reason for an unknown verdict, if any
    if (host := evidence.host) is not None:
        is_cpu = device.type == "cpu"
        reasons, unknown = _judge_cpu(host, evidence) if is_cpu else _judge_gpu(device, host, evidence)
    # Load before the steps does not matter if the CPU was free during them. A GPU shows only some of its users.
    if evidence.busy_before is not None and (unknown or device.type != "cpu"):
        reasons = [evidence.busy_before, *reasons]
    if not reasons and unknown:
        reasons, verdict, busy_before = [unknown], "unknown", None
    else:
        verdict, busy_before = "contaminated" if reasons else "clean", evidence.busy_before
    return Contamination(verdict=verdict, reasons=reasons, busy_before=busy_before, figures=_figures(evidence))


def foreign_load(host: ProcessorUse) -> str | None:
    limit = max(MAX_FOREIGN_CORES, MAX_FOREIGN_SHARE * host.num_cores)
    if host.foreign_cores is None or host.foreign_cores <= limit:
        return None
    return f"other processes kept {host.foreign_cores:.1f} of {plural(host.num_cores, 'core')} busy"


def num_fitting_threads(host: ProcessorUse) -> int:
    """The threads that have a core of their own beside other processes, one at least."""
    return max(int(_free_cores(host) + MAX_FOREIGN_CORES), 1)


def _free_cores(host: ProcessorUse) -> float:
    return min(host.num_cores - (host.foreign_cores or 0.0), host.quota_cores or math.inf)


def _computed(processes: frozenset[int]) -> str:
    ids = ", ".join(map(str, sorted(processes)))
    return f"process {ids} computed" if len(processes) == 1 else f"processes {ids} computed"


def _judge_cpu(host: ProcessorUse, evidence: Evidence) -> tuple[list[str], str]:
    if host.window_s < MIN_WINDOW_S:
        return [], f"the steps after warm-up took less than {MIN_WINDOW_S:g} s, too short to judge"
    reasons = []
    if (load := foreign_load(host)) is not None:
        reasons.append(f"{load} during the run")
    if (waited := _waiting_threads(host, evidence.num_threads)) is not None:
        reasons.append(waited)
    elif host.own_cores < MIN_OWN_CORES * (1 - evidence.data_wait_share):
        reasons.append(f"the run kept only {host.own_cores:.2f} cores busy: it waited for a processor or the disk")
    return reasons, "" if host.foreign_cores is not None else "the system does not report the load of other processes"


def _waiting_threads(host: ProcessorUse, num_threads: int) -> str | None:
    """A sentence if the run had clearly fewer cores than threads, and used what it had: it did not wait for data."""
    free_cores, fitting = _free_cores(host), num_fitting_threads(host)
    if fitting >= num_threads or not MIN_FREE_SHARE * free_cores <= host.own_cores <= MAX_THREAD_SHARE * num_threads:
        return None
    shared = f"{num_threads} threads shared {host.own_cores:.1f} free cores"
    return f"{shared}, and threads wait for each other: set OMP_NUM_THREADS={fitting}"


def _judge_gpu(device: torch.device, host: ProcessorUse, evidence: Evidence) -> tuple[list[str], str]:
    reasons = []
    if host.window_s >= MIN_WINDOW_S and evidence.waits_for_host:
        load = foreign_load(host)
        reasons += [] if load is None else [f"{load} during the run, and {device} waited for its host"]
    if evidence.others:
        reasons.append(f"{_computed(evidence.others)} on {device} during the run")
    if evidence.throttled_pct is not None and evidence.throttled_pct > MAX_THROTTLED_PCT:
        share = f"{evidence.throttled_pct:.0f}% of the samples"
        reasons.append(f"heat or hardware protection slowed {device} down in {share}")
    if evidence.others is not None:
        return reasons, ""
    return reasons, f"the driver does not list the processes that use {device.type} (as in a container)"


def _figures(evidence: Evidence) -> dict[str, float]:
    figures: dict[str, float | None] = {"throttled_pct": evidence.throttled_pct}
    if evidence.host is not None:
        figures |= asdict(evidence.host) | {"num_threads": evidence.num_threads}
    return {name: value for name, value in figures.items() if value is not None}


class UseBeforeRun:
    """Use of `device` by others before a run; construct it before the run allocates memory there. A CPU is observed
    until `sentence` is called, a GPU at once, and for a second if it seems busy."""

    def __init__(self, device: torch.device) -> None:
        self._busy: str | None = None
        self._window: ProcessorWindow | None = None
        if device.type == "cpu":
            self._began_s = time.perf_counter()
            self._window = None if nobody_else_runs() else ProcessorWindow()
        elif device.type == "cuda":
            own_gib = torch.cuda.memory_reserved(device) / GIB
            use = query_nvml(device, lambda nvml: _busy_gpu(nvml, own_gib))
            self._busy = None if use is None else f"{device} was in use before the run began: {use}"

    def sentence(self) -> str | None:
        """A sentence on the device's users, or None; waits until a CPU has been observed for a tenth of a second."""
        if self._window is not None:
            time.sleep(max(0.0, self._began_s + _CPU_WINDOW_S - time.perf_counter()))
            load, self._window = foreign_load(self._window.use()), None
            self._busy = None if load is None else f"the CPU was busy before the run began: {load}"
        return self._busy


def _busy_gpu(nvml: NvmlDevice, own_gib: float) -> str | None:
    seen = nvml.compute_processes() or frozenset()
    is_known_by_its_id = own_gib == 0 or os.getpid() in seen
    if is_known_by_its_id and (others := seen - own_processes()):
        return f"{_computed(others)} on it"
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
    """Use of the device by others from the end of warm-up to `end`; either takes milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._window: ProcessorWindow | None = None
        self._host: ProcessorUse | None = None
        self._others: frozenset[int] | None = frozenset()

    def after_warmup(self) -> None:
        self._note_others()
        self._window = ProcessorWindow()

    def pause(self) -> None:
        """Pause while the run does something other than steps, and may wait for a disk."""
        if self._window is not None:
            self._window.pause()

    def resume(self) -> None:
        if self._window is not None:
            self._window.resume()

    def end(self) -> None:
        if self._window is not None:
            self._host = self._window.use()
            self._note_others()

    def verdict(self, evidence: Evidence) -> Contamination:
        return judge(self._device, replace(evidence, host=self._host, others=self._others))

    def _note_others(self) -> None:
        """Note other processes on the GPU; they are unknown from then on if the driver does not list this process."""
        if self._device.type == "cpu" or self._others is None:
            return
        seen = query_nvml(self._device, NvmlDevice.compute_processes) or frozenset()
        self._others = self._others | (seen - own_processes()) if os.getpid() in seen else None
