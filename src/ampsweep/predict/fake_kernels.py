"""Kernels of the fake device: results of the right size, numbers that the host can read, and clear errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch

# The first FakeTensorMode imports this; imported within a training's construction it would keep that stack alive.
import torch._dynamo.config
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.nested_tensors import map_tensors
from ampsweep.observe.operators import FakeTensorMode, is_in_backward
from ampsweep.predict.kernel_sizes import corrections
from ampsweep.predict.known_values import KnownValues
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.vouched_operators import Vouching


class UntraceableError(Exception):
    """Raised by a step whose shapes or control flow depend on values of fake tensors."""

    def __init__(self, operator: str, module: str | None) -> None:
        where = "" if module is None else f" in {module}"
        super().__init__(f"{operator}{where} depends on values of tensors, and a prediction has none")


class FakeKernels(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's fake tensor mode with the sizes of the target's kernels (`FakeTensorMode.dispatch` is not public)."""

    def __init__(self, target: TargetDevice) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._corrections = corrections(target)
        self.vouching = Vouching(target)
        self.known = KnownValues()
        self._depth = 0
        self._running: list[str] | None = None  # names and classes of the running modules; None outside the model
        self.host_value = 0.0
        """The number that the host reads from any tensor outside the model. 0 means to a gradient scaler that nothing
        overflowed; an optimizer divides by powers of its count of steps: 1."""

    @contextmanager
    def forward_of(self, model: nn.Module) -> Iterator[None]:
        """Run the user's model inside: it cannot read numbers, and an error names the module that tried to."""
        names = {module: name or type(model).__name__ for name, module in model.named_modules()}
        self._running = running = []

        def enter(module: nn.Module, _: object) -> None:
            running.append(f"{names.get(module, '?')} ({type(module).__name__})")

        def leave(*_: object) -> None:
            running.pop()

        with ExitStack() as hooks:
            hooks.callback(setattr, self, "_running", None)
            hooks.callback(register_module_forward_pre_hook(enter).remove)
            hooks.callback(register_module_forward_hook(leave).remove)
            yield

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Run an operator on fake tensors; called by FakeTensorMode."""
        is_seen = self._depth == 0  # the operators within a fake kernel are not those of the real one
        if is_seen:
            self.vouching.note(func, self._module())
        self._depth += 1
        try:
            if func is torch.ops.aten._local_scalar_dense.default and (value := self.known.of(args[0])) is not None:
                return value.item()
            result = super().dispatch(func, types, args, kwargs)
        except RuntimeError as error:
            if type(error).__module__ != FakeTensorMode.__module__:  # the operator's own error
                raise
            if func is torch.ops.aten._local_scalar_dense.default and self._running is None and not is_in_backward():
                return self.host_value
            if (values := self.known.computed(func, args, kwargs)) is None:
                raise UntraceableError(str(getattr(func, "overloadpacket", func)), self._module()) from error
            result = map_tensors(values, self._like)
        finally:
            self._depth -= 1
        if is_seen:
            self.known.follow(func, args, kwargs, result)
        correct = self._corrections.get(getattr(func, "overloadpacket", func))
        return result if correct is None else correct(result, args)

    def _like(self, values: torch.Tensor) -> torch.Tensor:
        with self:
            return torch.empty_strided(values.size(), values.stride(), dtype=values.dtype)

    def _module(self) -> str | None:
        """Name and class of the innermost running module."""
        return self._running[-1] if self._running else None
