"""The functions of torch's interface as a training's code calls them, above autograd and autocast."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ampsweep.own_code import frame_of_caller, shown_place

_BACKWARDS: Final = frozenset((Tensor.backward, torch.autograd.backward, torch.autograd.grad))


@dataclass(frozen=True)
class CallIdentity:
    """All calls that one expression in the code makes with one function, whichever module it runs in."""

    function: str
    """Its name in torch's interface; of an operator that autograd's own backward pass calls, that of the operator."""
    line: str | None
    instruction: int | None
    """The number of the instruction in its function, which tells calls of one line apart."""

    @staticmethod
    def of_caller(function: str) -> "CallIdentity":
        """The identity of a call that the innermost code of a model or a task makes now."""
        frame = frame_of_caller()
        if frame is None:
            return CallIdentity(function, None, None)
        return CallIdentity(function, shown_place(frame), frame.f_lasti)


@dataclass(frozen=True)
class RunningFunction:
    """A function that runs."""

    identity: CallIdentity
    is_autocast: bool
    """Autocast is on."""


class FunctionCalls(TorchFunctionMode):
    """The one function mode: hands the outermost functions of torch's interface to `called`."""

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function, or do something else in its place; what it returns is the call's result."""
        return func(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.called(func, args, kwargs or {})


class FunctionMode(FunctionCalls):
    """Knows which function runs and which line called it, in backward passes too.

    Args:
        device_type: the type of device whose autocast is looked at.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.running: RunningFunction | None = None
        """The function that runs now."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        with _followed_backward(self), self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _BACKWARDS:
            return func(*args, **kwargs)
        outside, is_autocast = self.running, torch.is_autocast_enabled(self._device_type)
        self.running = RunningFunction(CallIdentity.of_caller(str(getattr(func, "__name__", func))), is_autocast)
        try:
            return self.called(func, args, kwargs)
        finally:
            self.running = outside


@contextmanager
def _followed_backward(mode: FunctionMode) -> Iterator[None]:
    """Keep watching in backward passes, whose functions torch calls with every mode of this kind switched off."""
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return engine(*args, **kwargs)

    with patch.object(torch.autograd, "_engine_run_backward", run):
        yield
