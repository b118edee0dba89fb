"""torch's DataLoader workers, ended reliably, and with readable errors."""

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
from ampsweep.stop_signals import STOP_SIGNALS, blocked_stop_signals, unblock_stop_signals
from ampsweep.text import one_line

_DYING_S: Final = 1.0  # longest wait for a worker to end after its connections have
_PLAIN: Final = {Tensor, bool, int, float, str, type(None)}


class Batches(Protocol):
    """Batches on the host by index, the same in any process."""

    def __getitem__(self, index: int) -> Any: ...

    def close(self) -> None:
        """Close resources that another process must not share; the next batch opens them again."""


class Workers:
    """Processes that each have a copy of `batches`, read ahead, and return them in the order of `indices`.

    They end with `close`, with the interpreter, and when this process is killed. With `pins` batches arrive in pinned
    memory.
    """

    def __init__(
        self, batches: Batches, indices: Iterable[int], *, num_workers: int, prefetch_factor: int | None, pins: bool
    ) -> None:
        before = set(multiprocessing.active_children())
        with blocked_stop_signals(), short_socket_paths(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # the user chose the number
            loader = DataLoader(
                _ReadInWorker(batches),
                batch_size=None,
                sampler=indices,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pins,
                collate_fn=_unchanged,
                worker_init_fn=partial(_begin_worker, os.getpid()),
                generator=generator("workers"),  # otherwise it draws from the model's generator
            )
            with without_modes():  # a fork would inherit the modes of a trace or a memory limit
                self._iterator: Any = iter(loader)
        self._processes = [child for child in multiprocessing.active_children() if child not in before]
        # Before multiprocessing's own cleanup, which waits for processes that ignore SIGTERM.
        self.close = util.Finalize(self, _end_workers, (self._iterator, self._processes), exitpriority=10)

    def next(self) -> Any:
        """Wait for the next batch; there must be one.

        Raises a MemoryError or ValueError for an error while reading, and a RuntimeError for a dead worker.
        """
        try:
            batch = next(self._iterator)
        except (OSError, EOFError) as error:  # a connection broke: torch names a dead worker, but not a dying worker
            ended = connection.wait([process.sentinel for process in self._processes], _DYING_S)
            for process in self._processes:
                if process.sentinel in ended:
                    raise RuntimeError(f"DataLoader worker (pid {process.pid}) exited unexpectedly") from error
            raise
        if isinstance(batch, Exception):
            raise batch
        return batch


class _ReadInWorker(Dataset[Any]):
    """Returns batches, or an error in place of a batch: a MemoryError or a ValueError, with the traceback as a note."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __getitem__(self, index: int) -> Any:
        try:
            batch = self._batches[index]
            if not _is_plain(batch):  # the queue would silently drop a batch that cannot be pickled
                _require_picklable(batch)
            return batch
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's own code may raise anything
            text = one_line(error)
            is_memory = isinstance(error, MemoryError)
            failure = MemoryError(text.removeprefix("MemoryError: ")) if is_memory else ValueError(text)
            failure.add_note(f"in a worker:\n{traceback.format_exc()}")
            return failure


def _unchanged(batch: Any) -> Any:
    return batch


def _begin_worker(parent: int, _: int) -> None:
    """Let this worker ignore stop signals, which its `parent` handles, and die with the parent."""
    for number in STOP_SIGNALS:
        signal.signal(number, _ignore)  # not SIG_IGN: programs started by the user's code would inherit it
    unblock_stop_signals()
    if sys.platform == "linux" and multiprocessing.get_start_method() == "fork":
        # Elsewhere torch's worker checks for its parent every 5 seconds, unless it reads.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the call


def _ignore(*_: object) -> None:
    pass


def _end_workers(iterator: Any, processes: list[BaseProcess]) -> None:
    """End the workers of a DataLoader's iterator; a worker that still reads after torch's 5 seconds is killed."""
    try:
        iterator._shutdown_workers()  # as its __del__ does, but too late if a traceback keeps the iterator alive
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def require_sendable(num_workers: int, *parts: Any) -> None:
    """Raise a ``ValueError`` if these parts of a data set cannot be sent to a worker."""
    method = multiprocessing.get_start_method()
    try:
        if num_workers and method != "fork":
            _require_picklable(parts)
    except (Exception, SystemExit) as error:  # the user's own __reduce__ may raise anything
        reason = f"the dataset cannot be sent to a worker, for which {method} pickles it: {one_line(error)}"
        raise ValueError(f"num_workers={num_workers}: {reason}") from error


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return _is_plain([*value.keys(), *value.values()])
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _require_picklable(value: Any) -> None:
    with Path(os.devnull).open("wb") as nowhere:
        pickle.Pickler(nowhere).dump(value)
