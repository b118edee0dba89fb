"""The time of a step in which its computing waits for other ranks, and the end of a collective on the host."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Variable

from ampsweep.observe.operators import storage_id

Moment = Any
"""A moment as a step's clock takes it: seconds on the host, or an event in the queue of the stream that computes."""
_LONGEST_S: Final = 0.1
"""The longest time to wait for gloo's thread."""


class Waits:
    """The stretches of a step in which nothing is computed, because a collective is not done.

    Each is enclosed with `with`; outside of steps nothing is kept. Taking a moment waits for no device: on one with a
    queue it is an event of the computing stream.
    """

    __slots__ = ("_began", "_last", "_now", "_stretches")

    def __init__(self) -> None:
        self._now: Callable[[], Moment] | None = None
        self._began: Moment = None
        self._last: Moment = None
        """The moment of the last gradient, until the backward pass has returned."""
        self._stretches: list[tuple[Moment, Moment]] = []

    def begin_step(self, now: Callable[[], Moment]) -> None:
        """Begin to keep waits, by this clock."""
        self._now, self._stretches = now, []

    def end_step(self) -> Sequence[tuple[Moment, Moment]]:
        """Take the waits of the step, in their order: when each began, and when it ended."""
        self._now = None
        return self._stretches

    def __enter__(self) -> None:
        self._began = None if self._now is None or self._last is not None else self._now()

    def __exit__(self, *_: object) -> None:
        if self._now is not None and self._began is not None:
            self._stretches.append((self._began, self._now()))

    def from_last_gradient(self, loss: Tensor) -> Callable[[], None]:
        """Prepare for the wait at the end of a backward pass from `loss`; call what is returned after the pass.

        At its end autograd calls what was queued, in that order: first ours, then those in which DDP waits for its
        last reductions. The way to queue is private in torch; its FSDP2 uses it, too.
        """
        if self._now is None:
            return _nothing
        now = self._now

        def reached() -> None:
            self._last = now()

        def returned() -> None:
            hook.remove()
            self._stretches.append((self._last, now()))
            self._last = None

        def begun(_: Tensor) -> None:
            Variable._execution_engine.queue_callback(reached)

        hook = loss.register_hook(begun)  # type: ignore[no-untyped-call]
        return returned


def _nothing() -> None:
    pass


@contextmanager
def until_let_go(*tensors: Tensor) -> Iterator[None]:
    """Leave, after a collective of tensors on the host, when no references remain except earlier ones.

    gloo's thread drops its own a moment, on a busy machine milliseconds, after it has said that the collective is done.
    """
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    before = [_num_holders(storage) for storage in storages]
    yield
    until = time.perf_counter() + _LONGEST_S
    while any(_num_holders(one) > num for one, num in zip(storages, before, strict=True)):
        if time.perf_counter() > until:
            return
        time.sleep(0)


def _num_holders(storage: torch.UntypedStorage) -> int:
    """The references to a storage, for which torch has no public call."""
    return int(torch._C._storage_Use_Count(storage_id(storage)))
