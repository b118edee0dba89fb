"""A device that exists in sizes only: tensors on it have shapes, dtypes and storages, but no values."""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _foreach_supported_types

from ampsweep.nested_tensors import map_tensors, plain_tensors_in, tensors_in
from ampsweep.observe.functions import FunctionCalls
from ampsweep.observe.operators import TO_COPY, FakeTensor, OperatorMode, unset_fake_temporarily
from ampsweep.observe.step import Trace, trace_step
from ampsweep.predict.cuda_operators import cuda_dispatch
from ampsweep.predict.fake_kernels import FakeKernels
from ampsweep.predict.kernel_sizes import scratch_of
from ampsweep.predict.known_values import taken_for_real
from ampsweep.predict.target_device import TargetDevice

_CHOICES: Final = ("_get_foreach_kernels_supported_devices", "_get_capturable_supported_devices")
_FILLED: Final[dict[Any, float]] = {torch.zeros: 0.0, torch.ones: 1.0}
CPU: Final = torch.device("cpu")
STAND_IN: Final = torch.device("meta")
"""The device that data is given as its own: whatever is moved there becomes a fake tensor on the fake device."""


class FakeDevice:
    """A context in which every computation allocates what it would on `target`, and nothing on this machine.

    All its tensors are fake CPU tensors, for CUDA too, with CUDA's dispatch in place of the CPU's: fake CUDA tensors
    need a CUDA build of torch, and a prediction must be the same on every machine. torch's FakeTensorMode is not
    public, but torch.compile and torch.export are built on it.
    """

    def __init__(self, target: TargetDevice) -> None:
        self.target = target
        self.kernels = FakeKernels(target)
        self._made: list[weakref.ref[Tensor]] = []
        """The tensors made while setting up."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run what is inside on this device."""
        with ExitStack() as stack:
            if self.target.kind == "cuda":
                stack.enter_context(cuda_dispatch(self.target))
            stack.enter_context(taken_for_real())
            stack.enter_context(patch.object(FakeTensor, "__deepcopy__", _deep_copy))
            stack.enter_context(self.kernels)
            yield

    @contextmanager
    def optimizers(self) -> Iterator[None]:
        """Let optimizers be built, and take their steps, as they do on this device.

        Private functions of torch/optim/optimizer.py choose `foreach` and `capturable` by the parameters' device.
        """
        with ExitStack() as stack:
            if on_cuda := self.target.kind == "cuda":
                for name, module in [*sys.modules.items()]:
                    for choice in _CHOICES if name.startswith("torch.optim.") else ():
                        if hasattr(module, choice):
                            stack.enter_context(patch.object(module, choice, _fake_cuda))
                _foreach_supported_types.append(FakeTensor)
                stack.callback(_foreach_supported_types.remove, FakeTensor)
            stack.enter_context(_Scalars(on_cuda=on_cuda))
            yield

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Run what is inside on this device; tensors made there and still alive later are resident."""

        def keep(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            result = func(*args, **kwargs)
            self._made += map(weakref.ref, plain_tensors_in(result))
            return result

        with self(), OperatorMode(keep):
            yield

    @contextmanager
    def loading_data(self) -> Iterator[None]:
        """Run what is inside on the host with real values, wherever this is called from.

        Tensors moved to `STAND_IN` become fake tensors of the same size.
        """
        with unset_fake_temporarily(), OperatorMode(self._transfer):
            yield

    def _transfer(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator and make fake what it returns on `STAND_IN`; copies moved there keep their values."""
        is_copy = func is TO_COPY
        is_there = is_copy and isinstance(args[0], FakeTensor)
        if is_there and [*kwargs] == ["device"]:
            return args[0]
        moved = map_tensors(func(*args, **kwargs), self._moved)
        if is_copy and isinstance(moved, FakeTensor) and not is_there:
            self.kernels.known.remember(moved, args[0].to(moved.dtype, copy=True))
        return moved

    def _moved(self, tensor: Tensor) -> Tensor:
        if tensor.device != STAND_IN:
            return tensor
        with self.kernels:
            return _like(tensor)

    def adopt(self, model: nn.Module) -> nn.Module:
        """Move a model built on torch's meta device to this one, in place; tied parameters stay tied.

        `Module.to` does not work for fake tensors: it swaps them, which fails where weak references to them exist.
        """
        here: dict[Tensor, Tensor] = {}
        with self():
            for module in model.modules():
                for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
                    if parameter not in here:
                        here[parameter] = nn.Parameter(_like(parameter), requires_grad=parameter.requires_grad)
                        _register_hooks_of(parameter, here[parameter])
                    setattr(module, name, here[parameter])
                for name, buffer in [*module.named_buffers(recurse=False, remove_duplicate=False)]:
                    setattr(module, name, here.setdefault(buffer, _like(buffer)))
        return model

    def trace_step(
        self, model: nn.Module, *optimizers: Optimizer, data: Iterable[Tensor] = (), counts_unused: bool = False
    ) -> AbstractContextManager[Trace]:
        """Trace a step as `ampsweep.observe.step.trace_step` does, on this device.

        `counts_unused`: resident tensors that the step does not use count too. On CUDA they always do, because the
        allocator counts them, and so does `data`.
        """
        kept = [tensor for made in self._made if (tensor := made()) is not None]
        if self.target.kind == "cpu":
            return trace_step(model, *optimizers, held=kept if counts_unused else (), fake=self.kernels)
        scratch = scratch_of(self.target)
        return trace_step(model, *optimizers, held=kept, data=data, fake=self.kernels, is_host=False, scratch=scratch)


def _fake_cuda(*_: Any, **__: Any) -> list[str]:
    return ["cpu"]


class _Scalars(FunctionCalls):
    """Numbers in tensors, such as an optimizer's count of steps, which a fake tensor keeps if it is made of one.

    What is made on CUDA without the parameter's device is a real tensor on the host, and so is what is computed of such
    tensors alone.
    """

    def __init__(self, *, on_cuda: bool) -> None:
        super().__init__()
        self._on_cuda = on_cuda

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func in _FILLED and kwargs.get("size", args[0] if len(args) == 1 else None) in ((), []):
            func, args = torch.tensor, (_FILLED[func],)
            kwargs = {key: value for key, value in kwargs.items() if key != "size"}
        if self._on_cuda and _is_on_host(func, args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _is_on_host(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if func is torch.tensor:  # a parameter's device is an object, and the host has a name
        return kwargs.get("device") in (None, "cpu") and not isinstance(kwargs.get("device"), torch.device)
    tensors = [*tensors_in((args, kwargs))]
    return bool(tensors) and not any(isinstance(one, FakeTensor) for one in tensors)


def _deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a fake tensor for `copy.deepcopy`; torch's own way reads its address, and there is none."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy.requires_grad_(tensor.requires_grad)
        )
    return cast(Tensor, memo[id(tensor)])


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)


def _register_hooks_of(parameter: Tensor, counterpart: Tensor) -> None:
    """Give the counterpart of a parameter the hooks that the model's constructor registered on its gradient.

    No public name lists them; torch's own serialization reads them so.
    """
    for hook in (parameter._backward_hooks or {}).values():
        counterpart.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        counterpart.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
