"""Calls of a forward pass, handed on one by one or computed in float32."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import resolve_name

from ampsweep.doctor.replay import Replay
from ampsweep.observe.calls import CallObserver, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.precision.fp32_modules import in_float32

_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
_CASTS: Final = ("to", "half", "bfloat16", "float", "double", "type", "type_as")
_FIXED: Final = frozenset((*_IN_PLACE, *_CASTS, "backward", "detach"))
"""Functions whose result has the dtype that they are asked for, or that compute nothing."""


@dataclass(frozen=True)
class CalledFunction:
    """The calls of one function at one line, or all that a module's own forward makes."""

    module: str | None
    """The innermost module that runs; empty for the model itself, None outside the model."""
    function: str | None = None
    """As torch writes it: `torch.nn.functional.softmax`; None: all of them."""
    place: str | None = None

    @property
    def can_widen(self) -> bool:
        """Tell whether its result may be float32: it neither changes a tensor in place nor makes one of given dtype."""
        name = (self.function or "").rpartition(".")[2]
        return name not in _FIXED and not (name.endswith("_") and not name.endswith("__"))

    def covers(self, call: "CalledFunction") -> bool:
        """Tell whether a call is one of these."""
        return self.module == call.module and (self.function is None or self == call)


OnFunction = Callable[[CalledFunction, Callable[..., Any], Any, Any], Any]
"""A function that gets a call, the function and its arguments, makes the call and returns the result."""


class _ForwardFunctions(FunctionMode):
    """Hands the calls of a model's and its loss's forward pass on; attributes that are read are none."""

    def __init__(self, device_type: str, observer: CallObserver, on_call: OnFunction) -> None:
        super().__init__(device_type)
        self._observer, self._on_call = observer, on_call

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        identity, module = self.running.identity, self._observer.module
        is_own = identity.line is None and module is None  # the trainer's
        if is_own or not torch.is_grad_enabled() or identity.function in ("__get__", "__set__"):
            return func(*args, **kwargs)
        call = CalledFunction(module, resolve_name(func) or identity.function, identity.line)
        return self._on_call(call, func, args, kwargs)


@contextmanager
def watched_calls(replay: Replay, on_call: OnFunction) -> Iterator[None]:
    """Hand each call of a forward pass made inside to `on_call`."""
    with (
        observe(replay.model, lambda *_: None, places=False) as observer,
        _ForwardFunctions(replay.device.type, observer, on_call).watching(),
    ):
        yield


@contextmanager
def calls_in_float32(replay: Replay, calls: Collection[CalledFunction]) -> Iterator[None]:
    """Compute some calls in float32: autocast is off for them, and their half-precision inputs are cast."""

    def on_call(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not call.can_widen or not any(one.covers(call) for one in calls):
            return func(*args, **kwargs)
        with torch.autocast(replay.device.type, enabled=False):
            return func(*in_float32(args), **in_float32(kwargs))

    if not calls:
        yield
        return
    with watched_calls(replay, on_call):
        yield
