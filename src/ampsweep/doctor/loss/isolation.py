"""The error that each module makes by itself in the arm's precision: with exact inputs, in a float32 step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from ampsweep.doctor.replay import Replay
from ampsweep.numeric_formats import FORMATS
from ampsweep.precision import Precision
from ampsweep.tracing.ledger import tensors_in
from ampsweep.training.checkpoint import restore_rng_state, rng_state


@dataclass(frozen=True)
class ModuleErrors:
    """Relative errors of modules' outputs in another precision."""

    errors: dict[str, float]
    """By module, the largest of its calls in the step, in the order in which modules end: the norm of the difference
    over the norm of the float32 output; infinite where the other output is not finite."""
    roundoff: float
    """The unit roundoff of the precision's dtype."""

    def excess(self, name: str) -> float:
        """Compute how much larger a module's error is than those of the modules within it, and than the dtype's."""
        inner = [error for other, error in self.errors.items() if _is_within(other, name)]
        own = self.errors[name]
        if math.isfinite(own):
            return own / max([self.roundoff, *(one for one in inner if math.isfinite(one))])
        return own if all(map(math.isfinite, inner)) else 0.0

    def excess_of(self, loss_error: float) -> float:
        """Compute how much larger the error of the loss is than that of the model's output."""
        model = self.errors.get("", 0.0)
        return loss_error / max(self.roundoff, model) if math.isfinite(model) else 0.0


def measure_alone(
    replay: Replay, precision: Precision, input_dtypes: Mapping[str, Sequence[torch.dtype]]
) -> ModuleErrors:
    """Take the next step of a float32 replay, and measure in it the error of each module in another precision.

    Each is called a second time with the inputs that it got. Of that nothing is left: it has copies of buffers, and
    random numbers are put back.

    Args:
        input_dtypes: those of the tensors that the modules get in the other precision.
    """
    names = {module: name for name, module in replay.model.named_modules()}
    errors: dict[str, float] = {}
    is_second = False

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal is_second
        if is_second or not torch.is_grad_enabled():
            return
        name = names[module]
        rng, buffers = rng_state(replay.device), {key: one.clone() for key, one in module.named_buffers()}
        dtypes = iter(input_dtypes.get(name, ()))
        is_second = True
        try:
            with torch.no_grad(), precision.autocast():
                own_args, own_kwargs = _cast_in(args, dtypes), _cast_in(kwargs, dtypes)
                again = functional_call(module, buffers, own_args, own_kwargs)  # autograd has saved the module's own
        finally:
            is_second = False
            restore_rng_state(rng, replay.device)
        error = _relative_error([*tensors_in(again)], [*tensors_in(output)])
        errors[name] = max(errors.get(name, 0.0), error)

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        replay.step()
    return ModuleErrors(errors, FORMATS[precision.config.dtype].unit_roundoff)


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
