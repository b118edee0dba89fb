"""The time that a step waits for other ranks, and the end of a collective on the host."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Variable

from ampsweep.observe.operators import storage_id

Moment = Any  # a step's timestamp: seconds on the host, or an event in the computing stream
_LONGEST_S: Final = 0.1  # limit of the wait for gloo's thread


class Waits:
    """The intervals in which a step waits for a collective, each enclosed by `with`; none synchronizes a device."""

    def __init__(self) -> None:
        self._now: Callable[[], Moment] | None = None
        self._began: Moment = None
        self._last: Moment = None  # the last gradient's timestamp, until the backward pass has returned
        self._intervals: list[tuple[Moment, Moment]] = []

    def begin_step(self, now: Callable[[], Moment]) -> None:
        self._now, self._intervals = now, []

    def end_step(self) -> Sequence[tuple[Moment, Moment]]:
        """The begin and end of each wait in the step, in order."""
        self._now = None
        return self._intervals

    def __enter__(self) -> None:
        self._began = None if self._now is None or self._last is not None else self._now()

    def __exit__(self, *_: object) -> None:
        if self._now is not None and self._began is not None:
            self._intervals.append((self._began, self._now()))

    def from_last_gradient(self, loss: Tensor) -> Callable[[], None]:
        """Prepare for the wait at the end of the backward pass from `loss`; call the returned function afterwards.
        Autograd's final callbacks run in the order in which they were queued: ours is before DDP's, which waits for the
        last reductions. Queuing them is private in torch (FSDP2 does it)."""
        if self._now is None:
            return lambda: None
        now = self._now

        def reached() -> None:
            self._last = now()

        def returned() -> None:
            hook.remove()
            self._intervals.append((self._last, now()))
            self._last = None

        def begun(_: Tensor) -> None:
            Variable._execution_engine.queue_callback(reached)

        hook = loss.register_hook(begun)  # type: ignore[no-untyped-call]
        return returned


@contextmanager
def until_released(*tensors: Tensor) -> Iterator[None]:
    """Leave, after a collective of tensors on the host, when no references remain except the caller's: gloo's thread
    drops its own up to milliseconds after the collective has returned."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    before = [_num_references(storage) for storage in storages]
    yield
    until = time.perf_counter() + _LONGEST_S
    while any(_num_references(storage) > num for storage, num in zip(storages, before, strict=True)):
        if time.perf_counter() > until:
            return
        time.sleep(0)


def _num_references(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage_id(storage)))  # torch has no public call
