"""Recording of a step with the results of its operators, and the matching of two such steps in different precision."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ampsweep.doctor.replay import Replay
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import UNWRITTEN, Call, Site, Sites, observe
from ampsweep.observe.operators import TO_COPY
from ampsweep.training.checkpoint import Checkpoint

_NOTHING: Final = 2.0**-100  # smaller differences of values count as none
_MOST_KEPT: Final = 2**14  # elements of a result that are kept at most: enough for the norm of an error to 1 %
_SAVING: Final = ("aten.native_", "aten._native_", "aten._scaled_dot_product", "aten._fused_rms_norm", "aten.cudnn_")
"""Prefixes of operators whose first result is the forward result. The others are kept for backward and may have no
meaningful digits, such as the mean of values that are already normalized."""

AroundSite = Callable[[Site, Any, Sequence[Any], dict[str, Any]], Any]  # makes the call of an operator


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A call of an operator, with elements of its floating-point results in float32 on the host."""

    call: Call
    site: Site  # the same in a step of another precision, as casts are not numbered
    results: tuple[Tensor, ...]  # none if it makes only integers of floating-point numbers
    choices: tuple[float, ...]  # its number arguments, and checksums of its integer tensors, such as indices
    draws: bool  # it uses random numbers; from the same seed another dtype may get others

    @property
    def roundoff(self) -> float:
        """The relative error of rounding to the least precise dtype of its results."""
        return max(torch.finfo(dtype).eps / 2 for dtype in self.call.outputs if dtype.is_floating_point)

    def error_beside(self, exact: "RecordedCall") -> float:
        return relative_error(self.results, exact.results)


Recorded = list[RecordedCall]


def record_step(replay: Replay, state: Checkpoint | None = None, around: AroundSite | None = None) -> Recorded:
    """Take the next step (or the step after `state`) and record the calls of its forward pass that compute anything of
    floating-point numbers, except for casts between their dtypes."""
    if state is not None:
        replay.restore(state)
    recorded: list[RecordedCall] = []
    sites, is_random = Sites(), False

    def around_site(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        nonlocal is_random
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if around is None or observer.begun is None or _casts(func, args, kwargs):
            return func(*args, **kwargs)
        return around(sites.site(observer.begun), func, args, kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if call.is_cast:
            return
        site = sites.passed(call)
        if call.phase != "forward" and not is_random:  # a later turn may draw after backward
            return
        taken, made = (
            [tensor for tensor in tensors_in(values) if tensor.is_floating_point() and tensor.layout is torch.strided]
            for values in (args, result)
        )
        if call.operator in UNWRITTEN or not (made or taken):
            return
        if made and not call.operator.endswith("_") and storages(made) <= storages(args):
            return  # a view of an argument
        used = made[:1] if call.operator.startswith(_SAVING) else made
        recorded.append(RecordedCall(call, site, tuple(map(selected, used)), _choices((args, kwargs)), is_random))

    replay.read_ahead()
    with observe(replay.model, on_call, around=around_site) as observer:
        replay.step()
    return recorded


def matched(own: Recorded, baseline: Recorded) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Match the calls of two steps by operator, module, line and number among such calls, in the order of the first.
    Calls without results, that only one step makes, or whose results have other sizes, have no match."""
    by_site = {recorded.site: recorded for recorded in baseline}
    for recorded in own:
        other = by_site.get(recorded.site)
        sizes = [result.numel() for result in recorded.results]
        if sizes and other is not None and sizes == [result.numel() for result in other.results]:
            yield recorded, other


def relative_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest relative error of several results, in the 2-norm: inf if a result is not finite where the exact value
    is, 0 where the exact values are all zero. Differences too small for any training to notice are ignored."""
    largest = 0.0
    for result, other in zip(results, exact, strict=True):
        known = other.isfinite()
        wanted = other[known].double()
        difference = result[known].double() - wanted
        difference[difference.abs() < _NOTHING] = 0.0
        size, norm = (float(torch.linalg.vector_norm(of)) for of in (difference, wanted))
        if not math.isfinite(size):
            return math.inf
        largest = max(largest, size / norm if norm > 0 else 0.0)
    return largest


def selected(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _MOST_KEPT))].to("cpu", torch.float32, copy=True)


def _casts(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True for what `Call.is_cast` calls a cast, before its call."""
    dtype = kwargs.get("dtype") if func is TO_COPY else None
    return dtype is not None and dtype.is_floating_point and args[0].is_floating_point() and dtype != args[0].dtype


def _choices(arguments: object) -> tuple[float, ...]:
    found: list[float] = []
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, int | float):
            found.append(leaf)
        elif isinstance(leaf, Tensor) and not leaf.is_floating_point() and not leaf.is_complex():
            values = leaf.detach().reshape(-1).to(torch.int64)
            order = torch.arange(1, values.numel() + 1, device=values.device)
            found += [float(values.sum()), float((values * order % 65_521).sum())]
    return tuple(found)


def storages(value: object) -> set[int]:
    """The addresses of the memory of all dense tensors."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_in(value) if tensor.layout is torch.strided}


def to_nearest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype).to(tensor.dtype)


class RandomRounding:
    """Rounding to a dtype after a random relative change by up to its unit roundoff, always the same sequence."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)

    def __call__(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        drawn = torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=self._generator)
        return to_nearest(tensor * drawn.sub_(0.5).mul_(torch.finfo(dtype).eps).add_(1), dtype)
