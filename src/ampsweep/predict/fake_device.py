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
from ampsweep.observe.operator_work import WorkLog
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
STAND_IN: Final = torch.device("meta")  # of the data: a tensor moved there becomes a fake tensor


class FakeDevice:
    """A context in which computations allocate the bytes that they would on `target`, and nothing on this machine. All
    tensors are fake CPU tensors, also for CUDA, with CUDA's dispatch: fake CUDA tensors need a CUDA build of torch, and
    a prediction must be the same on every machine. torch's FakeTensorMode is not public, but torch.compile and
    torch.export are built on it."""

    def __init__(self, target: TargetDevice, *others: TargetDevice) -> None:
        self.target = target
        self.alike = [each for each in (target, *others) if each.temporary_workspaces == target.temporary_workspaces]
        """The target, and the others on which every operator so far has taken the same kernel."""
        self.kernels = FakeKernels(target)
        self._made: list[weakref.ref[Tensor]] = []  # tensors of `setting_up`

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.target.kind == "cuda":
                stack.enter_context(cuda_dispatch(self.alike))
            stack.enter_context(taken_for_real())
            stack.enter_context(patch.object(FakeTensor, "__deepcopy__", _deep_copy))
            stack.enter_context(self.kernels)
            yield

    @contextmanager
    def optimizers(self) -> Iterator[None]:
        """Build optimizers and run their steps as on this device. Private functions of torch/optim/optimizer.py choose
        `foreach` and `capturable` by the parameters' device."""
        with ExitStack() as stack:
            if on_cuda := self.target.kind == "cuda":
                for name, module in [*sys.modules.items()]:
                    for choice in _CHOICES if name.startswith("torch.optim.") else ():
                        if hasattr(module, choice):
                            stack.enter_context(patch.object(module, choice, lambda *_, **__: ["cpu"]))
                _foreach_supported_types.append(FakeTensor)
                stack.callback(_foreach_supported_types.remove, FakeTensor)
            stack.enter_context(_Scalars(on_cuda=on_cuda))
            stack.enter_context(patch.object(self.kernels, "host_value", 1.0))
            yield

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Run code on this device; its tensors that stay alive are resident."""

        def keep(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            result = func(*args, **kwargs)
            self._made += map(weakref.ref, plain_tensors_in(result))
            return result

        with self(), OperatorMode(keep):
            yield

    @contextmanager
    def loading_data(self) -> Iterator[None]:
        """Run code on the host with real values; tensors moved to `STAND_IN` become fake tensors of the same size."""
        with unset_fake_temporarily(), OperatorMode(self._transfer):
            yield

    def _transfer(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator and make results on `STAND_IN` fake; the values of copies moved there stay known."""
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
        """Move a model from torch's meta device to this one, in place; tied parameters stay tied. `Module.to` swaps
        tensors, which fails for fake ones with weak references."""
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
        self,
        model: nn.Module,
        *optimizers: Optimizer,
        data: Iterable[Tensor] = (),
        counts_unused: bool = False,
        log: WorkLog | None = None,
    ) -> AbstractContextManager[Trace]:
        """Trace a step on this device, as `ampsweep.observe.step.trace_step` does. `counts_unused`: count resident
        tensors that the step does not use; on CUDA they and `data` always count, as the allocator counts them."""
        kept = [tensor for made in self._made if (tensor := made()) is not None]
        if self.target.kind == "cpu":
            return trace_step(model, *optimizers, held=kept if counts_unused else (), fake=self.kernels, log=log)
        scratch = scratch_of(self.target)
        how: dict[str, Any] = {"fake": self.kernels, "is_host": False, "scratch": scratch, "log": log}
        return trace_step(model, *optimizers, held=kept, data=data, **how)


class _Scalars(FunctionCalls):
    """Keeps the values of scalar tensors, such as an optimizer's count of steps. On CUDA, scalars created without the
    parameter's device are real tensors on the host, and so are their results."""

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
    return bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)


def _deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    # torch's own __deepcopy__ reads the tensor's address; a fake tensor has none.
    if id(tensor) not in memo:
        copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = nn.Parameter(copy, copy.requires_grad) if isinstance(tensor, nn.Parameter) else copy
    return cast(Tensor, memo[id(tensor)])


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)


def _register_hooks_of(parameter: Tensor, counterpart: Tensor) -> None:
    # The model's constructor may have registered hooks on gradients; torch's serialization reads them alike.
    for hook in (parameter._backward_hooks or {}).values():
        counterpart.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        counterpart.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
