"""What torch's CPU allocator hands out, to tensors and to kernels for themselves."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import profile


@dataclass(slots=True)
class Growth:
    """Filled in at the end of `host_growth`."""

    peak_bytes: int | None = None
    """The most that was allocated at once inside, above what was allocated before; None where it was not measured."""


@contextmanager
def host_growth() -> Iterator[Growth]:
    """Measure the growth of CPU memory inside, on this thread, by the memory events of torch's profiler.

    Costs 20 ms once and some microseconds an operator. What was allocated before and is freed inside is not subtracted,
    and torch says so on stderr. Not measured where a profiler runs already: two would spoil each other.
    """
    growth = Growth()
    if torch._C._autograd._profiler_enabled():  # no public name tells it
        yield growth
        return
    with _quiet(), profile(profile_memory=True) as profiled:
        yield growth
    growth.peak_bytes = _peak(profiled)


def _peak(profiled: profile) -> int:
    """The raw events are not documented; the summary made of them knows what an operator left, not what it took."""
    assert profiled.kineto_results is not None
    events: list[Any] = [event for event in profiled.kineto_results.events() if event.name() == "[memory]"]
    peak = allocated = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's library announces its start and stop on stderr (torch 2.13); it reads its level when it starts."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
