"""Batches of a map-style source by index, read in this process or ahead by workers, whichever is faster."""

import itertools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from ampsweep.data.worker_processes import why_not_sent
from ampsweep.data.workers import Workers
from ampsweep.tracing.host_memory import is_measuring

_HANDING_OVER_S: Final = 1e-3
"""Time to read a batch from which on workers pay: to hand one over takes some tenths of a millisecond of this process,
and there are processes to start."""
_NUM_TIMED: Final = 4
"""Batches that are timed before workers are chosen: the first two steps take longer, one of them is traced."""
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
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {self.num_workers}")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor must be at least 1, got {self.prefetch_factor}")
        if self.prefetch_factor is not None and self.num_workers == 0:
            raise ValueError(f"prefetch_factor={self.prefetch_factor} needs workers, but num_workers is 0")


class Source(Protocol):
    """Batches on the host that are functions of their index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class BatchReader:
    """The batches of a source by index.

    Workers begin with the second of two batches that follow each other, and end with a batch that does not follow: a
    check or a prediction, which reads one, starts none.
    """

    def __init__(self, source: Source, settings: WorkerSettings, device: torch.device) -> None:
        self._source, self._settings, self._device = source, settings, device
        # What is "read" to a device without values is a prediction's.
        self.num_workers: int | None = 0 if device.type == "meta" else settings.num_workers
        """Number of workers; None until it is chosen."""
        self._workers: Workers | None = None
        self._next = -1
        self._timing = Timing()

    def __call__(self, index: int) -> Any:
        """Read batch `index`."""
        follows = index == self._next
        self._next = index + 1
        if self._workers is not None:
            if follows:
                return self._from_workers(self._workers)
            self.close()
        if self.num_workers is None:
            return self._timed(index, follows)
        if self.num_workers > 0 and follows and not is_measuring():
            self._workers = self._started(itertools.count(index), self.num_workers)
            return self._from_workers(self._workers)
        return self._source[index]

    def one_pass(self, source: Source) -> Iterator[Any]:
        """Read all batches of another source, with as many workers as this one."""
        length = len(source)
        if not self.num_workers or length < 2:
            yield from (source[index] for index in range(length))
            return
        yield source[0]  # as it may be the only one that is asked for
        workers = Workers(
            source,
            range(1, length),
            num_workers=min(self.num_workers, length - 1),
            prefetch_factor=self._settings.prefetch_factor,
            pins=self._pins,
        )
        try:
            for _ in range(1, length):
                yield workers.next()
        finally:
            workers.close()

    def close(self) -> None:
        """End the workers; the next batches that follow each other start them again."""
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.close()

    @property
    def _pins(self) -> bool:
        return self._device.type == "cuda"

    def _from_workers(self, workers: Workers) -> Any:
        try:
            return workers.next()
        except BaseException:
            self.close()
            raise

    def _started(self, indices: Iterator[int], num_workers: int) -> Workers:
        factor = self._settings.prefetch_factor
        return Workers(self._source, indices, num_workers=num_workers, prefetch_factor=factor, pins=self._pins)

    def _timed(self, index: int, follows: bool) -> Any:
        if not follows:
            self._timing = Timing()
        timing = self._timing
        timing.begin()
        batch = self._source[index]
        timing.end()
        if timing.is_complete:
            self.num_workers = self._chosen(timing)
        return batch

    def _chosen(self, timing: "Timing") -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        computing = torch.get_num_threads() if self._device.type == "cpu" else 1
        num_workers = timing.num_workers(cores, computing)
        return num_workers if num_workers == 0 or why_not_sent(self._source) is None else 0


class Timing:
    """The times of some batches that follow each other: of reading one, and of the training between two."""

    def __init__(self) -> None:
        self._reads_s: list[float] = []
        self._busy_s: list[float] = []
        self._between_s: list[float] = []
        self._began_s = self._ended_s = self._began_busy_s = 0.0

    @property
    def is_complete(self) -> bool:
        return len(self._reads_s) == _NUM_TIMED

    def begin(self) -> None:
        """Begin to read."""
        self._began_s, self._began_busy_s = time.perf_counter(), time.thread_time()
        if self._reads_s:
            self._between_s.append(self._began_s - self._ended_s)

    def end(self) -> None:
        """Note that a batch was read."""
        self._ended_s = time.perf_counter()
        self._reads_s.append(self._ended_s - self._began_s)
        self._busy_s.append(time.thread_time() - self._began_busy_s)

    def num_workers(self, num_cores: int, num_computing: int) -> int:
        """The number of workers with which reading keeps up with a training that computes on `num_computing` cores.

        Those that compute themselves get the cores that it leaves, but one at least: while this process reads, all
        but one of its cores are idle. Those that wait get as many as there are cores.
        """
        read_s, step_s = sorted(self._reads_s)[_NUM_TIMED // 2 - 1], min(self._between_s)
        if read_s < _HANDING_OVER_S:
            return 0
        waits = sum(self._busy_s) < _COMPUTES * sum(self._reads_s)
        if not waits and num_cores == 1:
            return 0
        most = num_cores if waits else max(1, num_cores - num_computing)
        return max(1, min(math.ceil(read_s / max(step_s, 1e-9)), most, _MOST))
