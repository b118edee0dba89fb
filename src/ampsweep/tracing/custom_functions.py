"""The forward of custom autograd functions, within which torch does not say that autograd records."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_BASE: Final[Any] = torch.autograd.Function.__bases__[0]
"""The class below `torch.autograd.Function`: `apply` ends there, however it was called or bound before."""


class RecordedForward:
    """Tells whether autograd records the result of the operator that is called now, and of the function around it.

    Autograd runs the forward of a custom function with recording off and then records the function as a whole.
    """

    def __init__(self) -> None:
        self._in_function = False

    def __bool__(self) -> bool:
        return self._in_function or torch.is_grad_enabled()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the custom functions that are applied inside."""

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            outside, self._in_function = self._in_function, bool(self)
            try:
                return super(_BASE, cls).apply(*args, **kwargs)  # type: ignore[misc]
            finally:
                self._in_function = outside

        before = vars(_BASE).get("apply")
        _BASE.apply = classmethod(apply)
        try:
            yield
        finally:
            if before is None:
                del _BASE.apply
            else:
                _BASE.apply = before
