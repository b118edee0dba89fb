"""The forward of custom autograd functions, within which torch does not say that autograd records."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_METACLASS: Final[Any] = type(torch.autograd.Function)
"""`apply` is a C function from torch 2.15 on, bound when a module is imported: what it looks up on its class is all
that can be intercepted. It reads `_backward_cls` while recording is as outside, and calls the others with it off."""
_INHERITED: Final = (torch.autograd.Function.forward, torch.autograd.Function.setup_context)


class RecordedForward:
    """Tells whether autograd records the result of the operator that is called now, and of the function around it.

    Autograd runs the forward of a custom function with recording off and then records the function as a whole.
    """

    def __init__(self) -> None:
        self._in_function = False
        self._applied: tuple[Any, bool] | None = None
        """The function that is being applied, and whether it is recorded."""

    def __bool__(self) -> bool:
        return self._in_function or torch.is_grad_enabled()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the custom functions that are applied inside."""

        def look_up(cls: Any, name: str) -> Any:
            found, applied = type.__getattribute__(cls, name), self._applied
            if name == "_backward_cls":
                self._applied = cls, bool(self)
            elif name in ("forward", "setup_context") and applied and applied[0] is cls and found not in _INHERITED:
                is_last = name == "setup_context" or cls.setup_context in _INHERITED
                return self._followed(found, applied[1], None if is_last else applied)
            return found

        before = vars(_METACLASS).get("__getattribute__")
        _METACLASS.__getattribute__ = look_up
        try:
            yield
        finally:
            if before is None:
                del _METACLASS.__getattribute__
            else:
                _METACLASS.__getattribute__ = before

    def _followed(
        self, function: Callable[..., Any], is_recorded: bool, left: tuple[Any, bool] | None
    ) -> Callable[..., Any]:
        """Follow a method of the function that is being applied; `left` is what is being applied after it."""

        @functools.wraps(function)
        def followed(*args: Any, **kwargs: Any) -> Any:
            outside, self._in_function = self._in_function, is_recorded
            try:
                return function(*args, **kwargs)
            finally:
                self._in_function, self._applied = outside, left

        return followed
