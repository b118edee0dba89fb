"""Who keeps the processors busy: this training or somebody else."""

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ampsweep.monitors.host import num_available_cores

_STAT: Final = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class HostUse:
    """Processor time spent in a window, in cores: 1.0 is one core busy all of the time."""

    window_s: float
    """Pauses are not in it."""
    num_cores: int
    own_cores: float
    """This process with everything it started: data workers, wandb-core, compilers. Without pauses."""
    foreign_cores: float | None
    """All other processes, on the cores that this one may use; in a virtual machine also what its host took away.
    None where the system does not tell."""


class HostWindow:
    """The time from its making to `use`. Costs some milliseconds at either end and next to nothing between."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._busy_s, self._counted_s = _processor_times()
        self._own_s = _own_processor_time()
        self._paused: tuple[float, float] | None = None
        self._paused_s = self._own_paused_s = 0.0

    def pause(self) -> None:
        """From here on this process does something else; what others do still counts."""
        self._paused = time.perf_counter(), time.process_time()

    def resume(self) -> None:
        """It does no longer."""
        if self._paused is not None:
            paused_s, own_s = self._paused
            self._paused_s += time.perf_counter() - paused_s
            self._own_paused_s += time.process_time() - own_s
            self._paused = None

    def use(self) -> HostUse:
        """Who used the processors since then."""
        busy_s, counted_s = (
            now - then for now, then in zip(_processor_times(), (self._busy_s, self._counted_s), strict=True)
        )
        self.resume()
        own_s = _own_processor_time() - self._own_s
        all_s, num_cores = time.perf_counter() - self._began_s, num_available_cores()
        window_s = all_s - self._paused_s
        is_told = counted_s > all_s * num_cores / 2  # sandboxes have counters that stand still
        return HostUse(
            window_s=window_s,
            num_cores=num_cores,
            own_cores=(own_s - self._own_paused_s) / window_s,
            # Processes are timed exactly, processors in ticks of 10 ms: the difference can be a little below zero.
            foreign_cores=max(0.0, busy_s - own_s) / all_s if is_told else None,
        )


def nobody_else_runs() -> bool:
    """Whether nothing but this process runs or waits for a processor at this moment; false where that is not told."""
    if platform.system() != "Linux":
        return False
    counts = [line.split()[1] for line in _STAT.read_text(encoding="ascii").splitlines() if "procs_running" in line]
    return counts == ["1"]


def own_processes() -> set[int]:
    """Ids of this process and of all that it started and that still run."""
    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def _own_processor_time() -> float:
    """Seconds of this process, of those it started and that ended, and of those that still run."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _processor_times() -> tuple[float, float]:
    """Seconds (busy, busy or idle) since the machine started, summed over the cores this process may run on."""
    if platform.system() != "Linux":
        times = psutil.cpu_times()
        busy = float(times.user + times.system + getattr(times, "nice", 0.0))
        return busy, busy + float(times.idle)
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy_ticks = all_ticks = 0
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name in cores:  # https://docs.kernel.org/filesystems/proc.html, 1.7
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, counts[:8])
            busy = user + nice + system + irq + softirq + steal
            busy_ticks += busy
            all_ticks += busy + idle + iowait
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return busy_ticks / ticks_per_s, all_ticks / ticks_per_s
