"""How steps by hand are timed: by events on a GPU, and by the wall from the first to the last."""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

_CUDA: Final[Any] = torch.cuda  # whose events have no types


@dataclass(frozen=True)
class Timed:
    """What steps after warm-up took."""

    step_ms: float
    """Median over the steps, from event to event on a GPU."""
    wall_ms: float
    """From the first step's begin to the last one's end, over their number."""
    peak_bytes: int | None
    """Most bytes of the allocator at once; None where none counts them (CPU)."""

    def figures(self) -> dict[str, float]:
        """Those that were measured, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def time_steps(step: Callable[[], object], *, num_steps: int, num_warmup_steps: int, device: torch.device) -> Timed:
    """Take so many steps, the first of which are warm-up."""
    assert num_steps > num_warmup_steps
    for _ in range(num_warmup_steps):
        step()
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    now: Callable[[], Any] = _event if on_cuda else time.perf_counter
    began_s = time.perf_counter()
    moments = [now()]
    for _ in range(num_steps - num_warmup_steps):
        step()
        moments.append(now())
    if on_cuda:
        torch.cuda.synchronize(device)
    wall_ms = 1e3 * (time.perf_counter() - began_s) / (num_steps - num_warmup_steps)
    step_ms = statistics.median(_between_ms(one, other) for one, other in itertools.pairwise(moments))
    return Timed(step_ms, wall_ms, torch.cuda.max_memory_allocated(device) if on_cuda else None)


def _event() -> Any:
    event = _CUDA.Event(enable_timing=True)
    event.record()
    return event


def _between_ms(one: Any, other: Any) -> float:
    return 1e3 * (other - one) if isinstance(one, float) else float(one.elapsed_time(other))
