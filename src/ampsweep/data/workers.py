"""Workers that read batches ahead: torch's DataLoader, with ends that a user can read."""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, util
from typing import Any, Final

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ampsweep.data.letters import END, Failure, Letter, written
from ampsweep.data.seeding import generator
from ampsweep.data.worker_processes import begin_worker, end_workers, on_death, starting_workers, told_death

_DYING_S: Final = 1.0
"""Time between the end of a worker's connections and its own."""


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
