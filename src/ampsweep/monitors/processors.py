"""The host's processors: their name, number, and use by this training and by others."""

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

_STAT: Final = Path("/proc/stat")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


def num_available_cores() -> int:
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores() -> float | None:
    """The processor time that control groups allow this process, in cores, as in a container; None without a limit.

    https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max), https://docs.kernel.org/scheduler/sched-bwc.html (v1).
    """
    limits = []
    with suppress(OSError):  # another system than Linux
        for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            top = _GROUPS / "cpu" if "cpu" in controllers.split(",") else _GROUPS
            below = PurePosixPath(group.lstrip("/"))
            for folder in (top / each for each in (below, *below.parents)):  # a limit holds for all groups below it
                limits += _limit(folder / "cpu.max")
                limits += _limit(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
    return min(limits, default=None)


def _limit(*files: Path) -> list[float]:
    """The cores of a quota and its period, which are in one file or in two; none for "max", "-1" or no such file."""
    with suppress(OSError, ValueError):
        quota_us, period_us = map(int, " ".join(file.read_text(encoding="ascii") for file in files).split())
        return [quota_us / period_us] if quota_us > 0 else []
    return []


def cpu_name() -> str:
    """The processor's name by the operating system, or the architecture."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            label, _, name = line.partition(":")
            if label.strip() == "model name" and name.strip():
                return name.strip()
    elif platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
        if name:
            return name
    return platform.processor() or platform.machine()


_companions: frozenset[int] = frozenset()


def count_companions(processes: Iterable[int]) -> None:
    """Count these processes of this machine as parts of the same training from now on."""
    global _companions
    _companions = frozenset(processes) - {os.getpid()}


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Processor time spent in a window, in cores: 1.0 is one core busy all of the time."""

    window_s: float  # length of the window in seconds, without pauses
    num_cores: int
    own_cores: float  # used by this process and everything it started (data workers, compilers), without pauses
    foreign_cores: float | None
    """Used by all other processes on the available cores, in a virtual machine also by its host; None if unknown."""
    quota_cores: float | None = None  # what the control groups of this process allow; None without a limit


class ProcessorWindow:
    """Measures the use of processors from its construction to `use`; either takes some milliseconds."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._busy_s, self._counted_s = _processor_times()
        self._own_s, self._companions_s = _own_processor_time(), _companions_time()
        self._paused: tuple[float, float] | None = None
        self._paused_s = self._own_paused_s = 0.0

    def pause(self) -> None:
        """Stop counting this process while it does something other than steps; other processes still count."""
        self._paused = time.perf_counter(), time.process_time()

    def resume(self) -> None:
        if self._paused is not None:
            paused_s, own_s = self._paused
            self._paused_s += time.perf_counter() - paused_s
            self._own_paused_s += time.process_time() - own_s
            self._paused = None

    def use(self) -> ProcessorUse:
        busy_s, counted_s = _processor_times()
        self.resume()
        own_s = _own_processor_time() - self._own_s
        all_s, num_cores = time.perf_counter() - self._began_s, num_available_cores()
        window_s = all_s - self._paused_s
        others_s = busy_s - self._busy_s - own_s - max(0.0, _companions_time() - self._companions_s)
        is_known = counted_s - self._counted_s > all_s * num_cores / 2  # in some sandboxes the counters stand still
        return ProcessorUse(
            window_s=window_s,
            num_cores=num_cores,
            own_cores=(own_s - self._own_paused_s) / window_s,
            # Processes are timed exactly, processors in ticks of 10 ms: the difference can be a little below zero.
            foreign_cores=max(0.0, others_s) / all_s if is_known else None,
            quota_cores=quota_cores(),
        )


def nobody_else_runs() -> bool:
    """Return True if only this process runs or waits for a processor right now; False if unknown."""
    if platform.system() != "Linux":
        return False
    counts = [line.split()[1] for line in _STAT.read_text(encoding="ascii").splitlines() if "procs_running" in line]
    return counts == ["1"]


def own_processes() -> set[int]:
    """Ids of this process, its companions and its living descendants."""
    return {os.getpid(), *_companions, *(child.pid for child in psutil.Process().children(recursive=True))}


def _own_processor_time() -> float:
    """Seconds used by this process and its descendants, living or not."""
    ended = os.times()
    own = time.process_time() + ended.children_user + ended.children_system
    return own + _processor_time(psutil.Process().children(recursive=True))


def _companions_time() -> float:
    seconds = 0.0
    for companion in _companions:
        with suppress(psutil.Error):  # it has just ended
            process = psutil.Process(companion)
            seconds += _processor_time([process, *process.children(recursive=True)])
    return seconds


def _processor_time(processes: Iterable[psutil.Process]) -> float:
    seconds = 0.0
    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):  # it has just ended
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _processor_times() -> tuple[float, float]:
    """Seconds (busy, busy or idle) since the machine started, summed over the available cores."""
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
