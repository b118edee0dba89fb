"""The call that stops a training, observed in its code, and the casts with which it would run."""

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_with_path

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.running_code import Names, Place, Remedy, RunningCode, arguments_of, place_of
from ampsweep.doctor.tensor_origins import TensorOrigins
from ampsweep.doctor.types.findings import Operand, StopsWithError
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, CallObserver, Phase, observe
from ampsweep.observe.functions import CallIdentity, FunctionMode
from ampsweep.observe.operators import OpOverload, schema_of
from ampsweep.text import one_line
from ampsweep.user_code import chain_of

_Raised = tuple[Exception, Any, Sequence[Any], dict[str, Any]]  # the error, and the call that raised it
_WRITES: Final = re.compile(r"[^_]_$|^__(setitem|i[a-z]+)__$")  # names of functions that write their first argument
_MOST_FAILURES: Final = 8  # the last errors, of which a training may have caught all but one


@dataclass(frozen=True)
class FailedCall:
    error: Exception
    identity: CallIdentity
    operator: str  # the innermost that failed, as torch writes it: `aten.addmm`
    phase: Phase
    module: str | None
    operands: list[Operand]  # one for each of their dtypes
    casts: dict[str, CodeEdit | None]
    """Casts with which the call alone succeeds, in words, the best first; None if the code has no expression for it."""
    names: Names | None  # in the code of the call

    def finding(self, **facts: Any) -> StopsWithError:
        """The finding with the best cast, untried; `facts`: the step, and those that a replay knows better."""
        words, edit = next(iter(self.casts.items()), (None, None))
        known: dict[str, Any] = {"stage": self.phase, "error": one_line(self.error), "operands": self.operands}
        known |= {"operator": self.operator, "place": self.identity.line}
        known |= {"modules": [self.module] if self.module is not None else []}
        known |= {"change": Change(code=None if edit is None else edit.patch, words=words)}
        return StopsWithError(**(known | facts))


@dataclass(frozen=True)
class _Seen:
    """A call that raised an error, to be described once the training has ended with it."""

    raised: _Raised
    where: tuple[CallIdentity, str, Phase, str | None]  # its identity, operator, phase and module
    code: RunningCode | None
    autocast: torch.dtype | None  # None: it was off


class CallWatch(FunctionMode):
    def __init__(self, device_type: str, model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
        super().__init__(device_type)
        self._model = model
        self._failures: deque[_Seen] = deque(maxlen=_MOST_FAILURES)
        self._below: _Raised | None = None
        self.origins = TensorOrigins(model, optimizers, self)
        self._observer: CallObserver

    @contextmanager
    def watching(self) -> Iterator[None]:
        with observe(self._model, self.note_call, around=self.around) as self._observer, super().watching():
            yield

    def note_call(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.origins.note(call, args, kwargs, result)

    def failure_of(self, error: BaseException) -> FailedCall | None:
        for seen in chain_of(error):
            for failure in self._failures:
                if failure.raised[0] is seen:
                    return self._failed(failure)
            call = self._observer.failed
            if self._below is not None and self._below[0] is seen and call is not None:
                where = CallIdentity(call.operator, call.place, None), call.operator, call.phase, call.module
                return self._failed(_Seen(self._below, where, None, None))
        return None

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, AttributeError | StopIteration):
                self.note_error(error, func, args, kwargs)
            raise

    def note_error(self, error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Keep what is needed to describe a call that has raised an error."""
        assert self.running is not None
        identity, below, call = self.running.identity, self._below, self._observer.failed
        operator, module = identity.function, self._observer.module
        if getattr(torch.ops.aten, operator, None) is not None:
            operator = f"aten.{operator}"
        if below is not None and below[0] is error and call is not None:
            operator, module = call.operator, call.module
        where = identity, operator, self._observer.phase, module
        autocast = torch.get_autocast_dtype(self._device_type) if self.running.is_autocast else None
        self._failures.append(_Seen((error, func, args, kwargs), where, RunningCode.here(), autocast))

    def around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self._below = error, func, args, kwargs
            raise

    def _failed(self, seen: _Seen) -> FailedCall:
        """Describe a call that raised an error."""
        (error, func, args, kwargs), (identity, operator, phase, module) = seen.raised, seen.where
        given = arguments_of(args, kwargs).items()
        tensors = {at: arg for at, arg in given if isinstance(arg, Tensor) and arg.is_floating_point()}
        origins = {at: self.origins.of(tensor) for at, tensor in tensors.items()}
        names = {at: _argument_name(func, identity.function, at) for at in tensors}
        is_writing = _WRITES.search(identity.function)
        free = {at: tensor for at, tensor in tensors.items() if at[0] != "out" and not (is_writing and at[0] == 0)}
        held = {at for at, origin in origins.items() if origin.made.kind in ("parameter", "optimizer_state")}
        casts = dict[str, CodeEdit | None]()
        for remedy in sorted(_remedies(tensors, free), key=lambda remedy: (not held.isdisjoint(remedy), len(remedy))):
            with torch.autocast(self._device_type, seen.autocast, enabled=seen.autocast is not None):
                if _succeeds(func, args, kwargs, remedy):
                    words = (
                        f"cast {' and '.join(names[at] for at in remedy)} to {dtype_name(next(iter(remedy.values())))}"
                    )
                    casts.setdefault(words, None if seen.code is None else seen.code.edit(remedy, tensors))
        first = {tensors[at].dtype: at for at in reversed([*tensors])}
        shown = [Operand.of(names[at], origins[at].dtype_from) for at in tensors if at in first.values()]
        code_names = None if seen.code is None else seen.code.names
        return FailedCall(error, identity, operator, phase, module, shown, casts, code_names)


def _remedies(tensors: dict[Place, Tensor], free: dict[Place, Tensor]) -> Iterator[Remedy]:
    """Casts that may help: of one operand, or of all, to the dtype of another, or to float32."""
    for dtype in dict.fromkeys([*(tensor.dtype for tensor in tensors.values()), torch.float32]):
        others = [at for at, tensor in free.items() if tensor.dtype != dtype]
        yield from ({at: dtype} for at in others)
        if len(others) > 1:
            yield dict.fromkeys(others, dtype)


def _succeeds(func: Any, args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> bool:
    def cast(path: Any, value: Any) -> Any:
        return value.to(remedy[at]) if (at := place_of(path)) in remedy else value

    changed = tree_map_with_path(cast, {**dict(enumerate(args)), **kwargs})
    try:  # the training is over, and what is written in place does not matter
        func(*(changed[number] for number in range(len(args))), **{name: changed[name] for name in kwargs})
    except Exception:  # noqa: BLE001  it may fail for any reason, and is then no remedy
        return False
    return True


def _argument_name(func: Any, function: str, place: Place) -> str:
    first, *inner = place
    known = dict[int | str, str](enumerate(_names(func, function)))
    return known.get(first, f"argument {first}") + "".join(f"[{index}]" for index in inner)


def _names(func: Any, function: str) -> list[str]:
    if hasattr(inspect.unwrap(func), "__code__"):
        parameters = inspect.signature(func).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    packet = getattr(torch.ops.aten, function, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    known = [func] if isinstance(func, OpOverload) else overloads
    return max(([argument.name for argument in schema_of(own).arguments] for own in known), key=len, default=["self"])
