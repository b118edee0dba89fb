"""The machine's processors and this process on them."""

import os
import platform
import subprocess
from pathlib import Path


def num_available_cores() -> int:
    """Logical cores this process may run on."""
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the operating system tells it; the architecture where it tells none."""
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


def peak_resident_bytes() -> int:
    """The most memory this process held at once since it began, pages shared with other processes among them."""
    if platform.system() == "Linux":
        # Not getrusage: its maximum survives exec, so that a child is as large as the parent that launched it.
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            label, _, value = line.partition(":")
            if label == "VmHWM":
                return 1024 * int(value.split()[0])
    if platform.system() == "Windows":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak
