"""The error that each module makes by itself in the arm's precision: with exact inputs, in a float32 step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from ampsweep.doctor.replay import Replay
from ampsweep.numeric_formats import FORMATS
from ampsweep.precision import Precision
from ampsweep.tracing.ledger import tensors_in
from ampsweep.training.random_state import restore_rng_state, rng_state


class ModuleErrors:
    """Relative errors of modules' outputs under autocast, each called a second time with the inputs that it got.

    The norm of the difference over the norm of the float32 output, over all its tensors; infinite where the second
    output is not finite. Of the second call nothing is left: it has copies of buffers, and random numbers are put back.
    """

    def __init__(self, replay: Replay, precision: Precision, input_dtypes: Mapping[str, Sequence[torch.dtype]]) -> None:
        self._replay, self._precision, self._input_dtypes = replay, precision, input_dtypes
        self._names = {module: name for name, module in replay.model.named_modules()}
        self._is_second = False
        self.errors: dict[str, float] = {}
        """By module, the largest of its calls in the step, in the order in which modules end."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Enclose the step whose modules are measured."""
        handles = [one.register_forward_hook(self._after, with_kwargs=True) for one in self._names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _as_in_arm(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Cast what a module gets in float32 to the dtypes that it gets in the other precision."""
        dtypes = iter(self._input_dtypes.get(name, ()))
        return _cast_in(args, dtypes), _cast_in(kwargs, dtypes)

    def excess(self, name: str) -> float:
        """Compute how much larger a module's error is than those of the modules within it, and than the dtype's."""
        roundoff = FORMATS[self._precision.config.dtype].unit_roundoff
        inner = [error for other, error in self.errors.items() if _is_within(other, name)]
        own = self.errors[name]
        if math.isfinite(own):
            return own / max([roundoff, *(one for one in inner if math.isfinite(one))])
        return own if all(map(math.isfinite, inner)) else 0.0

    def excess_of(self, loss_error: float) -> float:
        """Compute how much larger the error of the loss is than that of the model's output."""
        roundoff = FORMATS[self._precision.config.dtype].unit_roundoff
        model = self.errors.get("", 0.0)
        return loss_error / max(roundoff, model) if math.isfinite(model) else 0.0

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._is_second or not torch.is_grad_enabled():
            return
        name, device = self._names[module], self._replay.device
        rng, buffers = rng_state(device), {key: one.clone() for key, one in module.named_buffers()}
        self._is_second = True
        try:
            with torch.no_grad(), self._precision.autocast():
                own_args, own_kwargs = self._as_in_arm(name, args, kwargs)
                again = functional_call(module, buffers, own_args, own_kwargs)  # autograd has saved the module's own
        finally:
            self._is_second = False
            restore_rng_state(rng, device)
        error = _relative_error([*tensors_in(again)], [*tensors_in(output)])
        self.errors[name] = max(self.errors.get(name, 0.0), error)


def measure_alone(
    replay: Replay, precision: Precision, input_dtypes: Mapping[str, Sequence[torch.dtype]]
) -> ModuleErrors:
    """Take the next step of a float32 replay, and measure in it the error of each module in another precision.

    Args:
        input_dtypes: those of the tensors that the modules get in the other precision.
    """
    found = ModuleErrors(replay, precision, input_dtypes)
    with found.measured():
        replay.step()
    return found


def _cast_in(value: Any, dtypes: Iterator[torch.dtype]) -> Any:
    """Cast the floating-point tensors in nested tuples, lists and dicts to dtypes given in their order."""

    def cast(tensor: Tensor) -> Tensor:
        dtype = next(dtypes, tensor.dtype)
        return tensor.to(dtype) if tensor.is_floating_point() and dtype.is_floating_point else tensor

    return tree_map_only(Tensor, cast, value)


def _is_within(inner: str, outer: str) -> bool:
    return inner != outer and (not outer or inner.startswith(f"{outer}."))


def _relative_error(found: list[Tensor], exact: list[Tensor]) -> float:
    square = norm = 0.0
    for one, other in zip(found, exact, strict=False):
        if not (one.is_floating_point() and other.is_floating_point()) or one.shape != other.shape:
            continue
        wide = other.detach().float()
        difference = torch.where(wide.isfinite(), one.float() - wide, torch.zeros_like(wide))
        square += float(difference.square().sum())
        norm += float(torch.where(wide.isfinite(), wide, torch.zeros_like(wide)).square().sum())
    if not math.isfinite(square):
        return math.inf
    return math.sqrt(square / norm) if norm else (math.inf if square else 0.0)
