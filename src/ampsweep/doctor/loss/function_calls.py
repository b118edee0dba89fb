"""Calls of torch's functions in a forward pass, by module and line: seen one by one, or computed in float32."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, resolve_name

from ampsweep.own_code_place import place_of_caller
from ampsweep.precision.fp32_modules import in_float32

_CASTS: Final = frozenset(
    {
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "to",
        "half",
        "bfloat16",
        "float",
        "double",
        "type",
        "type_as",
        "backward",
        "detach",
    }
)
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
        return name not in _CASTS and not (name.endswith("_") and not name.endswith("__"))

    def covers(self, call: "CalledFunction") -> bool:
        """Tell whether a call is one of these."""
        return self.module == call.module and (self.function is None or self == call)


class FunctionCalls(TorchFunctionMode):
    """A function mode that hands the calls of a model's and its loss's forward pass on. Enter it by `watched_calls`."""

    def __init__(
        self, model: nn.Module, on_call: Callable[[CalledFunction, Callable[..., Any], Any, Any], Any]
    ) -> None:
        super().__init__()
        self._names = {module: name for name, module in model.named_modules()}
        self._on_call = on_call
        self._running: list[nn.Module] = []

    def module_begins(self, module: nn.Module, *_: object) -> None:
        """Note that the forward of a module begins; for torch's hook."""
        self._running.append(module)

    def module_ends(self, *_: object) -> None:
        """Note that the forward of the innermost module is over; for torch's hook."""
        if self._running:
            self._running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not torch.is_grad_enabled() or name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        if (place := place_of_caller()) is None and not self._running:  # the trainer's own
            return func(*args, **kwargs)
        module = next((self._names[one] for one in reversed(self._running) if one in self._names), None)
        return self._on_call(CalledFunction(module, resolve_name(func) or name, place), func, args, kwargs)


@contextmanager
def watched_calls(
    model: nn.Module, on_call: Callable[[CalledFunction, Callable[..., Any], Any, Any], Any]
) -> Iterator[None]:
    """Hand each call of a forward pass made inside to `on_call`, which makes it and returns the result.

    Attributes that are read are not told.
    """
    mode = FunctionCalls(model, on_call)
    with ExitStack() as entered:
        entered.callback(register_module_forward_pre_hook(mode.module_begins).remove)
        entered.callback(register_module_forward_hook(mode.module_ends, always_call=True).remove)
        entered.enter_context(torch.compiler.set_stance("force_eager"))
        entered.enter_context(mode)
        yield


@contextmanager
def calls_in_float32(model: nn.Module, calls: Collection[CalledFunction], device_type: str) -> Iterator[None]:
    """Compute some calls in float32: autocast is off for them, and their half-precision inputs are cast."""

    def on_call(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not call.can_widen or not any(one.covers(call) for one in calls):
            return func(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):
            return func(*in_float32(args), **in_float32(kwargs))

    if not calls:
        yield
        return
    with watched_calls(model, on_call):
        yield
