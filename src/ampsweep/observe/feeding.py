"""The line between a training and what feeds it: building data and reading batches is no memory of a training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final, Self
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage

from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.host_memory import is_measuring, mark_delivery, mark_reading
from ampsweep.observe.ledger import Ledger
from ampsweep.observe.operators import PLAIN, OperatorMode, is_made_of_others

_COPY: Final = torch.ops.aten.copy_.default
_EXCHANGING: Final = frozenset(("c10d", "_c10d_functional", "fsdp"))
"""Namespaces of the operators that ranks exchange tensors by."""


class StorageCounter:
    """Enters the storages of operators into a ledger, except what only feeds batches.

    On a host only the batches themselves count, each tensor by its own bytes for as long as the training keeps it. What
    an accelerator holds to feed batches counts as `data`.
    """

    _entered: ClassVar[list["StorageCounter"]] = []
    """Dispatch modes are global to their thread, and so is the list of those that count."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.is_feeding = False
        """True while operators only build data or read batches."""
        self.is_blind = False
        """True while operators stand for compiled kernels."""
        self._context: ExitStack

    def __enter__(self) -> Self:
        self._context = ExitStack()
        self._context.enter_context(following_resizes(self._resize))
        self._context.enter_context(OperatorMode(self._around))
        self._entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.remove(self)
        self._context.close()

    def deliver(self, batch: Any) -> None:
        """Note the tensors of a batch that is there from now on."""
        for tensor in tensors_in(batch):
            self.ledger.deliver(tensor)

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any, made: Any
    ) -> None:
        """Enter what an operator has returned; `made` are the tensors of it whose storages may be new."""
        raise NotImplementedError

    @property
    def _looks_away(self) -> bool:
        return self.is_blind or (self.is_feeding and self.ledger.is_host)

    def _around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self._looks_away:
            return func(*args, **kwargs)
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        # A view uses no byte on a host, where memory counts as far as it is used. An operator that is made of others
        # returns a view or a copy; it comes whole where a tensor subclass calls it.
        is_view = self.ledger.is_host and getattr(func, "is_view", False) and not is_made_of_others(func)
        if not is_view and not self._copies_from_gloo(func, inputs):
            self.ledger.hold_unknown(inputs, "data" if self.is_feeding else "other")
        result = func(*args, **kwargs)
        self._note(func, args, kwargs, inputs, result, () if is_view else tensors_in(result))
        if getattr(func, "namespace", None) in _EXCHANGING:
            self.ledger.exchange((*inputs, *tensors_in(result)))
        return result

    def _copies_from_gloo(self, func: Any, inputs: Sequence[Tensor]) -> bool:
        """Gloo copies what it has received out of buffers of its own, which are no tensors of the training."""
        found = self.ledger.find(inputs[0]) if func is _COPY else None
        return found is not None and found.category == "communication"

    def _resize(self, storage: UntypedStorage, before: int) -> None:
        if not self._looks_away:
            self.ledger.resize(storage, before)


def feeding() -> AbstractContextManager[None]:
    """Enclose what only feeds batches: the building of data, and reading."""
    return _marked("is_feeding")


def unseen() -> AbstractContextManager[None]:
    """Enclose operators that stand for compiled kernels, whose results are kept: no trace of this thread sees them."""
    return _marked("is_blind")


@contextmanager
def _marked(name: str) -> Iterator[None]:
    counters = [counter for counter in StorageCounter._entered if not getattr(counter, name)]
    for counter in counters:
        setattr(counter, name, True)
    try:
        yield
    finally:
        for counter in counters:
            setattr(counter, name, False)


def fed(read: Callable[..., Any], *args: Any) -> Any:
    """Read a batch by `read(*args)`; where storages are counted, or a profiler runs, what counts is the batch alone."""
    if not StorageCounter._entered:
        return _read_profiled(read, *args) if is_measuring() else read(*args)
    with feeding():
        batch = _read_profiled(lambda: _own_tensors(read(*args)))
    note_delivery(batch)
    return batch


def _read_profiled(read: Callable[..., Any], *args: Any) -> Any:
    mark_reading()
    batch = read(*args)
    mark_delivery(sum(tensor.nbytes for tensor in {id(found): found for found in tensors_in(batch)}.values()))
    return batch


def note_delivery(batch: Any) -> None:
    """Note the tensors of a batch that is there from now on."""
    for counter in StorageCounter._entered:
        counter.deliver(batch)


def fed_each(batches: Iterable[Any]) -> Iterator[Any]:
    """Read batch after batch as `fed` does."""
    source, end = iter(batches), object()
    while (batch := fed(next, source, end)) is not end:
        yield batch


def resident(data: object) -> list[Tensor]:
    """The tensors that data holds in its attributes and in the containers and objects there."""
    found: list[Tensor] = []
    seen, waiting = set[int](), [data]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set):
            waiting += value
        else:
            waiting += getattr(value, "__dict__", {}).values()
    return found


def _own_tensors(batch: Any) -> Any:
    """The same batch in tensors of its own over the same memory, which die with it though its data keeps the memory."""
    made: dict[int, Tensor] = {}

    def own(tensor: Tensor) -> Tensor:
        if type(tensor) not in PLAIN or tensor.requires_grad:
            return tensor
        # No view: operators in place on a view are not those on a tensor.
        return made.setdefault(id(tensor), tensor.data)

    return map_tensors(batch, own)


@contextmanager
def following_resizes(note: Callable[[UntypedStorage, int], None]) -> Iterator[None]:
    """Call `note` with each storage that is resized inside, in any thread, and the bytes it had before.

    No mode sees that, so the method is replaced, as in `torch.distributed._tools.mem_tracker`.
    """
    inner = UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        before = storage.nbytes()
        resized = inner(storage, size)
        note(storage, before)
        return resized

    with patch.object(UntypedStorage, "resize_", resize):
        yield
