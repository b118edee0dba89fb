"""The count of the kernel's out-of-memory killer for the cgroup of this process.

https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events) and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.oom_control).
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def num_oom_kills(root: Path = Path("/")) -> int | None:
    """Number of processes in this process's cgroup that the kernel has killed for lack of memory; None if unknown.

    `root` is the root of the file system.
    """
    for path in _counters(root):
        with suppress(OSError):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdecimal():
                    return int(count)
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Files that may hold the count: those of the cgroup, then those that a container sees as its own."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield mount / "memory" / path.lstrip("/") / "memory.oom_control"
            elif not controllers:  # the nearest that has the memory controller: Slurm's is the step, not the task
                place = mount / path.lstrip("/")
                yield from (one / "memory.events" for one in (place, *place.parents) if one.is_relative_to(mount))
    yield mount / "memory.events"
    yield mount / "memory/memory.oom_control"
