"""Fake kernels: sizes put right, numbers given to the host, complaints made clear."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import torch

# What the first FakeTensorMode would import, while a training is being built, whose stack those modules would keep.
import torch._dynamo.config
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.predict.kernel_results import corrections
from ampsweep.predict.target import Target

_UNTRACEABLE: Final = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

_NO_KEYWORDS: Final[Mapping[str, Any]] = MappingProxyType({})


class UntraceableError(Exception):
    """A step whose shapes or course depend on values cannot be traced without any."""

    def __init__(self, operator: str, module: str | None) -> None:
        where = "" if module is None else f" in {module}"
        super().__init__(f"{operator}{where} depends on values of tensors, and a prediction has none")


class Kernels(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's fake tensors, with the sizes of the target's kernels.

    Not a mode of its own above them: each costs an operator as much again. `FakeTensorMode.dispatch` is not public.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._corrections = corrections(target)
        self._names: dict[nn.Module, str] | None = None
        self._at_work: list[nn.Module] = []
        self._number = 0.0

    @contextmanager
    def forward_of(self, model: nn.Module) -> Iterator[None]:
        """What runs inside is the user's: no number can be given to it, and a complaint names its module."""
        self._names = {module: name or type(model).__name__ for name, module in model.named_modules()}
        self._at_work.clear()
        begin = register_module_forward_pre_hook(lambda module, _: self._at_work.append(module))
        end = register_module_forward_hook(lambda *_: self._leave())
        try:
            yield
        finally:
            begin.remove()
            end.remove()
            self._names = None

    def answer(self, number: float) -> None:
        """What the host reads from now on, outside the model, is `number`.

        0 says to a gradient scaler that nothing overflowed; an optimizer divides by powers of its count of steps.
        """
        self._number = number

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NO_KEYWORDS
    ) -> Any:
        """What an operator returns."""
        try:
            result = super().dispatch(func, types, args, kwargs)
        except _UNTRACEABLE as error:
            if func is torch.ops.aten._local_scalar_dense.default and self._names is None and not _in_backward():
                return self._number
            raise UntraceableError(str(getattr(func, "overloadpacket", func)), self._module()) from error
        correct = self._corrections.get(getattr(func, "overloadpacket", func))
        return result if correct is None else correct(result, args)

    def _leave(self) -> None:
        self._at_work.pop()

    def _module(self) -> str | None:
        """The innermost module at work."""
        if self._names is None or not self._at_work:
            return None
        module = self._at_work[-1]
        return f"{self._names.get(module, '?')} ({type(module).__name__})"


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)  # as torch.utils.module_tracker asks it
