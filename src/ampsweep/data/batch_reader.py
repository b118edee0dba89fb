"""Batches of a map-style source by index, read in this process or ahead by workers."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import torch

from ampsweep.data.worker_processes import why_not_sent
from ampsweep.data.worker_settings import ReadTiming, WorkerSettings
from ampsweep.data.workers import Workers
from ampsweep.tracing.host_memory import is_measuring

_NUM_TIMED: Final = 4
"""Batches that are timed before workers are chosen: the first two steps take longer, one of them is traced."""


class Source(Protocol):
    """Batches on the host that are functions of their index."""

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
        self._timing = ReadTiming()

    def __call__(self, index: int) -> Any:
        """Read batch `index`."""
        follows = index == self._next
        self._next = index + 1
        if self._workers is not None:
            if follows:
                return self._from_workers(self._workers)
            self.stop_workers()
        if self.num_workers is None:
            return self._timed(index, follows)
        if self.num_workers > 0 and follows and not is_measuring():
            self._workers = self._started(itertools.count(index), self.num_workers)
            return self._from_workers(self._workers)
        return self._source[index]

    def one_pass(self, source: Source, indices: Sequence[int]) -> Iterator[Any]:
        """Read these batches of another source, with as many workers as this one."""
        if not self.num_workers or len(indices) < 2:
            yield from (source[index] for index in indices)
            return
        yield source[indices[0]]  # as it may be the only one that is asked for
        workers = Workers(
            source,
            indices[1:],
            num_workers=min(self.num_workers, len(indices) - 1),
            prefetch_factor=self._settings.prefetch_factor,
            pins=self._pins,
        )
        try:
            for _ in indices[1:]:
                yield workers.next()
        finally:
            workers.close()

    def stop_workers(self) -> None:
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
            self.stop_workers()
            raise

    def _started(self, indices: Iterator[int], num_workers: int) -> Workers:
        factor = self._settings.prefetch_factor
        return Workers(self._source, indices, num_workers=num_workers, prefetch_factor=factor, pins=self._pins)

    def _timed(self, index: int, follows: bool) -> Any:
        if not follows:
            self._timing = ReadTiming()
        with self._timing.reading():
            batch = self._source[index]
        if len(self._timing) == _NUM_TIMED:
            num_workers = self._timing.num_workers(self._device)
            self.num_workers = num_workers if why_not_sent(self._source) is None else 0
        return batch
