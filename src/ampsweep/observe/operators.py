"""The dispatch mode of the suite, and private names of torch: operators, fake tensors, autograd, modes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils.module_tracker import ModuleTracker

AroundOperator = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
"""Gets an operator with its arguments, calls it, and returns its result or another."""

TO_COPY: Final = torch.ops.aten._to_copy.default  # casts a tensor or moves it to another device
PLAIN: Final = (Tensor, FakeTensor)  # wrap no others
_TRACKER: Final = ModuleTracker()
_DEVICE: Final = torch.ops.prim.device.default  # a fake tensor's device; called three times for each other operator


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operator, below autograd and autocast, to a function that calls it; the innermost mode is first."""

    supports_higher_order_operators = True

    def __init__(self, around: AroundOperator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._around = around

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if any(t is not FakeTensor and t.__torch_dispatch__ is not Tensor.__torch_dispatch__ for t in types):
            return NotImplemented  # operators on the tensors that it wraps are seen
        return self._around(func, args, kwargs or {})


def schema_of(operator: Any) -> torch.FunctionSchema:
    schema: torch.FunctionSchema = operator._schema
    return schema


def storage_id(storage: torch.UntypedStorage) -> int:
    """The identity of a storage while it lives, even without bytes."""
    return int(storage._cdata)


@cache
def is_made_of_others(operator: Any) -> bool:
    """Return True for a composite operator such as `to` and `reshape`."""
    return has_kernel(operator.name(), "CompositeImplicitAutograd")


def has_kernel(operator: str, key: str) -> bool:
    """Return True if this build of torch has a kernel of an operator (`aten::add.Tensor`) for a dispatch key."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, key))


def is_in_backward() -> bool:
    return bool(_TRACKER.is_bw)


def backward_node() -> Any:
    """The node of autograd that computes gradients now in this thread, or None."""
    return torch._C._current_autograd_node()


def innermost_mode() -> TorchDispatchMode | None:
    """The dispatch mode of this thread that sees operators first; a mode can only be left while it is this one."""
    mode: TorchDispatchMode | None = _get_current_dispatch_mode()
    return mode


without_modes = _disable_current_modes  # hides operators inside from every dispatch mode of this thread


@contextmanager
def on_real_tensors() -> Iterator[None]:
    """Hide calls inside from every mode of this thread, so that a prediction does not change them."""
    with without_modes(), torch._C.DisableTorchFunction():
        yield
