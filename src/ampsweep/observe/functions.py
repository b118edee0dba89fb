"""Calls of torch's functions by a training's code, above autograd and autocast."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from ampsweep.user_code import CodeLine, frame_of_caller

_BACKWARDS: Final = frozenset((Tensor.backward, torch.autograd.backward, torch.autograd.grad))


@dataclass(frozen=True)
class CallIdentity:
    """Identifies all calls of a function by the same expression of the code, in whichever module it runs."""

    function: str  # its name in torch's interface, or the operator's in autograd's own backward pass
    line: str | None
    instruction: int | None  # index of the bytecode instruction, which distinguishes calls on the same line


@dataclass(frozen=True)
class RunningFunction:
    identity: CallIdentity
    is_autocast: bool  # autocast is on


class FunctionCalls(TorchFunctionMode):
    """Hands the outermost calls of torch's functions to `called`."""

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function, or replace the call; the returned value is the call's result."""
        return func(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.called(func, args, kwargs or {})


class FunctionMode(FunctionCalls):
    """Keeps the running function and the line that called it, in backward passes too."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._device_type = device_type
        self.running: RunningFunction | None = None  # the function that runs now

    @contextmanager
    def watching(self) -> Iterator[None]:
        with _followed_backward(self), self:
            yield

    def is_innermost(self) -> bool:
        """Return True if this mode can be left now; torch has no public name for it."""
        return bool(_get_current_function_mode() is self)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _BACKWARDS:
            return func(*args, **kwargs)
        outside, frame = self.running, frame_of_caller()  # the innermost code of a model or a task
        place = (None, None) if frame is None else (CodeLine.of(frame), frame.f_lasti)
        identity = CallIdentity(str(getattr(func, "__name__", func)), *place)
        self.running = RunningFunction(identity, torch.is_autocast_enabled(self._device_type))
        try:
            return self.called(func, args, kwargs)
        finally:
            self.running = outside


@contextmanager
def _followed_backward(mode: FunctionMode) -> Iterator[None]:
    # torch calls the functions of a backward pass with every mode of this kind switched off.
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return engine(*args, **kwargs)

    with patch.object(torch.autograd, "_engine_run_backward", run):
        yield
