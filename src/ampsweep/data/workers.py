"""Workers that read batches ahead: torch's DataLoader, whose ends and errors a user can read, and their number."""

import math
import os
import pickle
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, util
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory  # any nesting is pinned by nothing public

from ampsweep.data.seeding import generator
from ampsweep.data.worker_processes import begin_worker, end_workers, on_death, starting_workers, told_death
from ampsweep.text import one_line

_DYING_S: Final = 1.0
"""Time between the end of a worker's connections and its own."""
END: Final = object()
"""Stands for a batch where there is none any more."""
_HANDING_OVER_S: Final = 1e-3
"""Time to read a batch from which on workers pay: to hand one over takes some tenths of a millisecond of this process,
and there are processes to start."""
_COMPUTES: Final = 0.5
"""Share of the time of reading in which a processor works; below it a reader waits, for a disk or a network."""
_MOST: Final = 16


@dataclass(frozen=True)
class Letter:
    """A batch, pickled by the worker itself: its queue would drop, and never tell, what cannot be pickled."""

    content: bytes

    def pin_memory(self) -> "Pinned":
        """Move the batch to pinned memory; torch calls it in the thread in which it does that."""
        return Pinned(pin_memory(pickle.loads(self.content)))  # type: ignore[no-untyped-call]

    def open(self) -> Any:
        """The batch; its tensors are in the memory that the worker has put them into."""
        return pickle.loads(self.content)


@dataclass(frozen=True)
class Pinned:
    """A batch in pinned memory."""

    batch: Any

    def open(self) -> Any:
        return self.batch


@dataclass(frozen=True)
class Failure:
    """The error of a worker in place of a batch."""

    sentence: str
    traceback: str
    is_memory: bool
    """There was no memory left."""

    def open(self) -> Any:
        """Raise the error: a MemoryError if it was one, else a ValueError, with the worker's own sentence."""
        cause = _InWorkerError(self.traceback)
        if self.is_memory:
            raise MemoryError(self.sentence.removeprefix("MemoryError: ")) from cause
        raise ValueError(self.sentence) from cause


class _InWorkerError(Exception):
    """The traceback of a worker, shown as the cause of an error in this process."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


def written(read: Callable[[], Any]) -> Letter | Failure | None:
    """Read a batch, in a worker, and put it into a letter; None for `END`."""
    try:
        batch = read()
        return None if batch is END else Letter(bytes(ForkingPickler.dumps(batch)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
        return Failure(one_line(error), traceback.format_exc(), isinstance(error, MemoryError))


class Workers:
    """Processes that read batches ahead, and hand them over in order.

    They end with `close`, with the interpreter, and when this process is killed.

    Args:
        batches: what each worker gets a copy of: batches by index, or an iterable of them.
        indices: the batches to read, in order; None for an iterable.
        prefetch_factor: batches that each worker has read ahead; None: torch's default, 2.
        pins: hand batches over in pinned memory.
    """

    def __init__(
        self, batches: Any, indices: Iterable[int] | None, *, num_workers: int, prefetch_factor: int | None, pins: bool
    ) -> None:
        with starting_workers() as self._processes, _quiet():
            loader = DataLoader(
                _Streamed(batches) if indices is None else _Indexed(batches),
                batch_size=None,
                sampler=indices,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pins,
                collate_fn=_as_it_is,
                worker_init_fn=partial(begin_worker, os.getpid()),
                generator=generator("workers"),  # else it takes a number from the model's
            )
            self._iterator: Any = iter(loader)
        # It runs before multiprocessing's own end, which waits for processes that ignore SIGTERM.
        self.close = util.Finalize(self, end_workers, (self._iterator, self._processes), exitpriority=10)

    def next(self) -> Any:
        """Wait for the next batch; there must be one.

        Raises:
            ValueError: reading it raised, or a worker has died: in one sentence.
        """
        self._look_for_the_dead()
        try:
            with on_death(self._look_for_the_dead):
                letter = next(self._iterator)
            return letter.open()
        except (RuntimeError, OSError, EOFError):  # as it shows here that a worker has died, or is about to
            self._await_a_death()
            self._look_for_the_dead()
            raise

    def _await_a_death(self) -> None:
        closed = connection.wait([process.sentinel for process in self._processes], _DYING_S)
        for process in self._processes:
            if process.sentinel in closed:  # which a dying process is before it can be waited for
                process.join(_DYING_S)

    def _look_for_the_dead(self) -> None:
        for process in self._processes:
            if (told := told_death(process)) is not None:
                raise ValueError(told)


class _Indexed(Dataset[Any]):
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __getitem__(self, index: int) -> Letter | Failure | None:
        return written(lambda: self._batches[index])


class _Streamed(IterableDataset[Any]):
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Letter | Failure]:
        batches = iter(self._batches)
        while (letter := written(lambda: next(batches, END))) is not None:
            yield letter
            while isinstance(letter, Failure):
                yield letter  # else the worker would leave, and be taken for dead before its letter is read


def _as_it_is(letter: Any) -> Any:
    return letter


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's advice on the number of workers: who gives one knows the machine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


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
