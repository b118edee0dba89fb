"""Batches on their way from a worker to the process that trains, and errors in their place."""

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from torch.utils.data._utils.pin_memory import pin_memory  # any nesting is pinned by nothing public

from ampsweep.text import one_line

END: Final = object()
"""Stands for a batch where there is none any more."""


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
        """The batch."""
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
