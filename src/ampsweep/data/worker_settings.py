"""The number of workers of a data set: as it is given, or chosen from the time that reading takes."""

import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

_HANDING_OVER_S: Final = 1e-3
"""Time to read a batch from which on workers pay: to hand one over takes some tenths of a millisecond of this process,
and there are processes to start."""
_COMPUTES: Final = 0.5
"""Share of the time of reading in which a processor works; below it a reader waits, for a disk or a network."""
_MOST: Final = 16


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a data set's workers.

    Raises:
        ValueError: a number is out of range, or there is no worker to prefetch.
    """

    num_workers: int | None = None
    """None: as many as reading takes, found out by timing the first batches; 0 where it is quick."""
    prefetch_factor: int | None = None
    """Batches that each worker has read ahead; None: torch's default, 2."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and type(value) is not int:
                raise ValueError(f"{name} must be a whole number, got {value}")
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {self.num_workers}")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor must be at least 1, got {self.prefetch_factor}")
        if self.prefetch_factor is not None and self.num_workers == 0:
            raise ValueError(f"prefetch_factor={self.prefetch_factor} needs workers, but num_workers is 0")


class ReadTiming:
    """The times of reads that follow each other, and of the training between two."""

    def __init__(self) -> None:
        self._reads_s: list[float] = []
        self._busy_s: list[float] = []
        self._between_s: list[float] = []
        self._ended_s = 0.0

    def __len__(self) -> int:
        return len(self._reads_s)

    @contextmanager
    def reading(self) -> Iterator[None]:
        began_s, began_busy_s = time.perf_counter(), time.thread_time()
        if self._reads_s:
            self._between_s.append(began_s - self._ended_s)
        yield
        self._ended_s = time.perf_counter()
        self._reads_s.append(self._ended_s - began_s)
        self._busy_s.append(time.thread_time() - began_busy_s)

    def num_workers(self, device: torch.device, reads_per_batch: int = 1) -> int:
        """The number of workers with which reading keeps up with a training on `device`, with a core for each.

        Those that compute themselves get the cores that a training on the CPU leaves, but one at least: while this
        process reads, all but one of its cores are idle. The ranks of a training on this machine share its cores.
        """
        cores = max(1, _num_cores() // _num_local_ranks())
        batch_s = reads_per_batch * statistics.median_low(self._reads_s)
        if batch_s < _HANDING_OVER_S:
            return 0
        waits = sum(self._busy_s[1:]) < _COMPUTES * sum(self._reads_s[1:])  # the first read opens files
        if not waits and cores == 1:
            return 0
        most = cores if waits else max(1, cores - (torch.get_num_threads() if device.type == "cpu" else 1))
        return max(1, min(math.ceil(batch_s / max(min(self._between_s, default=0.0), 1e-9)), most, _MOST))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _num_local_ranks() -> int:
    """Number of ranks on this machine, as torch's launcher tells each; 1 in a process that is no rank."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() and int(told) > 0 else 1
