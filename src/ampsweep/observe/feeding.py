"""The memory of a training without that of its data: building data and reading batches is not counted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final, Self
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage

from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.host_memory import DELIVERED, READING, is_measuring, mark_in_profile
from ampsweep.observe.ledger import Ledger
from ampsweep.observe.operators import PLAIN, OperatorMode, is_made_of_others

EXCHANGING: Final = frozenset(("c10d", "_c10d_functional", "fsdp"))  # of operators that exchange tensors between ranks


class StorageCounter:
    """Enters the storages of operators into a ledger, without memory that only feeds batches. On a host only batches
    count, by their own bytes while the training keeps them; on an accelerator what feeds them counts as `data`."""

    _entered: ClassVar[list["StorageCounter"]] = []  # the active counters; global like the thread's dispatch modes

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.is_feeding = False  # True while operators only build data or read batches
        self.is_blind = False  # True while operators stand for compiled kernels
        self.is_tolerant = False  # True: a failure in counting ends the counting, not the operator
        self.failure: Exception | None = None  # what failed, if tolerant
        self._context: ExitStack

    def __enter__(self) -> Self:
        self._context = ExitStack()
        # No dispatch mode sees resizes, so the method is replaced, as in `torch.distributed._tools.mem_tracker`.
        resize = self._resizing(UntypedStorage.resize_)
        self._context.enter_context(patch.object(UntypedStorage, "resize_", resize))
        self._context.enter_context(OperatorMode(self._around))
        self._entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.remove(self)
        self._context.close()

    def deliver(self, batch: Any) -> None:
        for tensor in tensors_in(batch):
            self.ledger.deliver(tensor)

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any, made: Any
    ) -> None:
        """Enter the result of an operator; `made` are its tensors whose storages may be new."""
        raise NotImplementedError

    @property
    def _is_off(self) -> bool:
        return self.is_blind or (self.is_feeding and self.ledger.is_host)

    def _around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self._is_off:
            return func(*args, **kwargs)
        noted = self._tolerated(self._before, func, args, kwargs)
        result = func(*args, **kwargs)
        if noted is not None:
            self._tolerated(self._after, func, args, kwargs, *noted, result)
        return result

    def _tolerated(self, count: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return count(*arguments)
        except Exception as error:
            if not self.is_tolerant:
                raise
            self.failure, self.is_blind = error, True  # it is another's training, which goes on
            return None

    def _before(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Tensor], bool]:
        """Hold the inputs of an operator; returns them, and whether its result is a view."""
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        # On a host memory counts as far as it is used, and a view uses none. Composite operators return a view or a
        # copy; tensor subclasses call them whole.
        is_view = self.ledger.is_host and getattr(func, "is_view", False) and not is_made_of_others(func)
        if not is_view and not self._copies_from_gloo(func, inputs):
            self.ledger.hold_unknown(inputs, "data" if self.is_feeding else "other")
        return inputs, is_view

    def _after(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], is_view: bool, result: Any
    ) -> None:
        self._note(func, args, kwargs, inputs, result, () if is_view else tensors_in(result))
        if getattr(func, "namespace", None) in EXCHANGING:
            self.ledger.exchange((*inputs, *tensors_in(result)))

    def _copies_from_gloo(self, func: Any, inputs: Sequence[Tensor]) -> bool:
        # Gloo's receive buffers are not tensors of the training.
        found = self.ledger.find(inputs[0]) if func is torch.ops.aten.copy_.default else None
        return found is not None and found.category == "communication"

    def _resizing(self, inner: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        def resize(storage: Any, size: int) -> Any:
            before = storage.nbytes()
            resized = inner(storage, size)
            if not self._is_off:
                self.ledger.resize(storage, before)
            return resized

        return resize


def feeding() -> AbstractContextManager[None]:
    """Enclose code that only builds data or reads batches."""
    return _marked("is_feeding")


def unseen() -> AbstractContextManager[None]:
    """Hide operators from every trace of this thread: they stand for compiled kernels, and only their results stay."""
    return _marked("is_blind")


@contextmanager
def _marked(name: str) -> Iterator[None]:
    with ExitStack() as marks:
        for counter in StorageCounter._entered:
            marks.enter_context(patch.object(counter, name, True))
        yield


def fed(read: Callable[..., Any], *args: Any) -> Any:
    """Read a batch by `read(*args)`; counters and profilers count only the batch."""
    if not StorageCounter._entered:
        return _read_profiled(read, *args) if is_measuring() else read(*args)
    with feeding():
        batch = _read_profiled(lambda: _own_tensors(read(*args)))
    note_delivery(batch)
    return batch


def _read_profiled(read: Callable[..., Any], *args: Any) -> Any:
    mark_in_profile(READING)
    batch = read(*args)
    num_bytes = sum(tensor.nbytes for tensor in {id(found): found for found in tensors_in(batch)}.values())
    mark_in_profile(f"{DELIVERED}{num_bytes}")
    return batch


def note_delivery(batch: Any) -> None:
    for counter in StorageCounter._entered:
        counter.deliver(batch)


def fed_each(batches: Iterable[Any]) -> Iterator[Any]:
    source, end = iter(batches), object()
    while (batch := fed(next, source, end)) is not end:
        yield batch


def resident(data: object) -> list[Tensor]:
    """The tensors that data holds in its attributes, and in containers and objects there."""
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
    """Wrap the batch in new tensors over the same memory: they die with the batch, though the data keeps the memory."""
    made: dict[int, Tensor] = {}

    def own(tensor: Tensor) -> Tensor:
        if type(tensor) not in PLAIN or tensor.requires_grad:
            return tensor
        return made.setdefault(id(tensor), tensor.data)  # not a view, on which operators in place are others

    return map_tensors(batch, own)
