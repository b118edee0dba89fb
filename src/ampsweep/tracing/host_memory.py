"""Memory of this process on the host: the peak of torch's CPU allocator, and the resident peak."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd.profiler import profile, record_function

_READING: Final = "ampsweep: a batch is read"
_DELIVERED: Final = "ampsweep: bytes of the batch: "
"""Marks in a profile: what is allocated between the two is not counted, but the batch instead."""


@dataclass(slots=True)
class HostPeak:
    """The result of `measure_host_peak`, filled in when that context ends."""

    peak_bytes: int | None = None
    """The most bytes allocated at once inside, above those allocated before; None if it was not measured."""


@contextmanager
def measure_host_peak() -> Iterator[HostPeak]:
    """Measure the peak of CPU memory allocated inside, for tensors and by kernels for themselves, on this thread.

    The figures are the memory events of torch's profiler, which costs 20 ms once and some microseconds an operator.
    Memory that was allocated before and is freed inside is not subtracted, and torch says so on stderr. Nothing is
    measured where a profiler runs already: two would disturb each other. Of what `mark_reading` and `mark_delivery` lie
    around, the batch alone counts, until the next.
    """
    found = HostPeak()
    if is_measuring():
        yield found
        return
    with quiet_profiler(), profile(profile_memory=True) as profiled:
        yield found
    found.peak_bytes = _peak(profiled)


def is_measuring() -> bool:
    """Tell whether a profiler runs: a process that was forked now would go on with it."""
    enabled: bool = torch._C._autograd._profiler_enabled()  # no public name tells it
    return enabled


def mark_reading() -> None:
    """Tell a measurement that only a batch is read from now on."""
    if is_measuring():
        with record_function(_READING):
            pass


def mark_delivery(num_bytes: int) -> None:
    """Tell a measurement that a batch of this size was read."""
    if is_measuring():
        with record_function(f"{_DELIVERED}{num_bytes}"):
            pass


def is_reading(name: str) -> bool:
    """Tell whether an event of a profile is the mark of `mark_reading`."""
    return name == _READING


def delivered_bytes(name: str) -> int | None:
    """The bytes of the batch, if an event of a profile is the mark of `mark_delivery`."""
    return int(name.removeprefix(_DELIVERED)) if name.startswith(_DELIVERED) else None


def peak_resident_bytes() -> int:
    """The most bytes that were resident in this process at once since it began, including pages it shares."""
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


def _peak(profiled: profile) -> int:
    """The peak from the profiler's raw events, which are not documented.

    The documented summary of these events has the bytes that an operator left allocated, but not its own peak.
    """
    assert profiled.kineto_results is not None
    peak = allocated = 0
    read: int | None = None  # bytes that the reading of a batch has left allocated so far
    elsewhere = 0  # bytes of the latest batch that reading it did not allocate: they are the data's, or NumPy's
    events: list[Any] = profiled.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        name = event.name()
        if is_reading(name):
            read = 0
        elif (num_bytes := delivered_bytes(name)) is not None:
            made = min(max(read or 0, 0), num_bytes)
            allocated += num_bytes - elsewhere
            read, elsewhere = None, num_bytes - made
        elif name == "[memory]" and read is not None:
            read += event.nbytes()
        elif name == "[memory]":
            allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """Silence the profiler's library, which announces its start and stop on stderr (torch 2.13).

    It reads its log level when it is first used.
    """
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
