"""The workers of torch's DataLoader, with an end, and with errors that a user can read."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable
from functools import partial
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Protocol

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ampsweep.data.seeding import generator
from ampsweep.observe.operators import without_modes
from ampsweep.socket_folder import short_socket_paths
from ampsweep.stop_signals import STOP_SIGNALS, held_stop_signals, release_stop_signals
from ampsweep.text import one_line

_DYING_S: Final = 1.0
"""Longest wait for a worker to end once its connections have."""
_PLAIN: Final = {Tensor, bool, int, float, str, type(None)}


class Batches(Protocol):
    """Batches on the host by index, the same in any process."""

    def __getitem__(self, index: int) -> Any: ...

    def close(self) -> None:
        """Close what another process must not share; the next batch opens it again."""


class Workers:
    """Processes that read `batches`, of which each has a copy, ahead and hand them over in the order of `indices`.

    They end with `close`, with the interpreter, and when this process is killed. With `pins` batches arrive in pinned
    memory.
    """

    def __init__(
        self, batches: Batches, indices: Iterable[int], *, num_workers: int, prefetch_factor: int | None, pins: bool
    ) -> None:
        before = set(multiprocessing.active_children())
        with held_stop_signals(), short_socket_paths(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # who gives a number knows why
            loader = DataLoader(
                _ReadInWorker(batches),
                batch_size=None,
                sampler=indices,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pins,
                collate_fn=_as_it_is,
                worker_init_fn=partial(_begin_worker, os.getpid()),
                generator=generator("workers"),  # else it takes a number from the model's
            )
            with without_modes():  # a fork would inherit those of a trace or a memory limit
                self._iterator: Any = iter(loader)
        self._processes = [child for child in multiprocessing.active_children() if child not in before]
        # It runs before multiprocessing's own end, which waits for processes that ignore SIGTERM.
        self.close = util.Finalize(self, _end_workers, (self._iterator, self._processes), exitpriority=10)

    def next(self) -> Any:
        """Wait for the next batch; there must be one.

        Raises:
            MemoryError: reading it raised one.
            ValueError: reading it raised: in one sentence.
            RuntimeError: a worker has died.
        """
        try:
            batch = next(self._iterator)
        except (OSError, EOFError) as error:  # a connection broke: torch names a dead worker, but not a dying one
            ended = connection.wait([process.sentinel for process in self._processes], _DYING_S)
            for process in self._processes:
                if process.sentinel in ended:
                    raise RuntimeError(f"DataLoader worker (pid {process.pid}) exited unexpectedly") from error
            raise
        if isinstance(batch, Exception):
            raise batch
        return batch


class _ReadInWorker(Dataset[Any]):
    """Batches, or in place of one its error: a MemoryError, else a ValueError, with one sentence and the traceback."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __getitem__(self, index: int) -> Any:
        try:
            batch = self._batches[index]
            if not _is_plain(batch):  # the queue would drop, and never tell, what cannot be pickled
                _require_picklable(batch)
            return batch
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
            told = one_line(error)
            is_memory = isinstance(error, MemoryError)
            failure = MemoryError(told.removeprefix("MemoryError: ")) if is_memory else ValueError(told)
            failure.add_note(f"in a worker:\n{traceback.format_exc()}")
            return failure


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_worker(parent: int, _: int) -> None:
    """Prepare this worker: stop signals are for its `parent`, with which it dies."""
    for number in STOP_SIGNALS:
        signal.signal(number, _ignore)  # no SIG_IGN: a program that the user's code starts would inherit it
    release_stop_signals()
    if sys.platform == "linux" and multiprocessing.get_start_method() == "fork":
        # Elsewhere torch's worker looks every 5 seconds, unless it reads.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it died before that


def _ignore(*_: object) -> None:
    pass


def _end_workers(iterator: Any, processes: list[BaseProcess]) -> None:
    """End the workers of a DataLoader's iterator; one that still reads after torch's 5 seconds is killed."""
    try:
        iterator._shutdown_workers()  # as its __del__ does, which comes too late where a traceback keeps it
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def why_not_sent(*parts: Any) -> str | None:
    """A sentence on why these parts of a data set cannot be sent to a worker, or None if they can."""
    method = multiprocessing.get_start_method()
    if method == "fork":
        return None
    try:
        _require_picklable(parts)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own __reduce__ may raise anything
        return f"the dataset cannot be sent to a worker, for which {method} pickles it: {one_line(error)}"
    return None


def _is_plain(value: Any) -> bool:
    """Tell whether a value consists of tensors and Python's own types."""
    if type(value) is dict:
        return _is_plain([*value.keys(), *value.values()])
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _require_picklable(value: Any) -> None:
    with Path(os.devnull).open("wb") as nowhere:
        pickle.Pickler(nowhere).dump(value)
