"""A step of which each operator's result is kept, and the match of two such steps in different precision."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ampsweep.doctor.replay import Replay
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import UNWRITTEN, Call, Site, Sites, observe
from ampsweep.observe.operators import TO_COPY
from ampsweep.training.checkpoint import Checkpoint

_NOTHING: Final = 2.0**-100
"""Differences of values below this are none."""
_MOST_KEPT: Final = 2**14
"""Elements of a result that are kept at most, evenly selected: enough for the norm of an error to 1 %."""

_SAVING: Final = ("aten.native_", "aten._native_", "aten._scaled_dot_product", "aten._fused_rms_norm", "aten.cudnn_")
"""The beginnings of names of operators that compute their first result in forward; the others are kept for backward,
and may have no digits that matter, as the mean of values that were normalized before."""

AroundSite = Callable[[Site, Any, Sequence[Any], dict[str, Any]], Any]
"""A function that gets a call of an operator, makes it and returns the result, or another one."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A call of an operator, with elements of its floating-point results in float32 on the host."""

    call: Call
    site: Site
    """The same in a step of another precision: casts have no number in it."""
    results: tuple[Tensor, ...]
    choices: tuple[float, ...]
    """Its arguments that are numbers, and checksums of those that are tensors of whole numbers, such as indices."""
    draws: bool
    """It does nothing but fill a tensor with random numbers; of one seed, another dtype may get others."""

    @property
    def roundoff(self) -> float:
        """The relative error of rounding to the least precise dtype of its results."""
        return max(torch.finfo(dtype).eps / 2 for dtype in self.call.outputs if dtype.is_floating_point)

    def error_beside(self, exact: "RecordedCall") -> float:
        """The relative error of its results, those of another call being exact."""
        return relative_error(self.results, exact.results)


def record_step(
    replay: Replay, state: Checkpoint | None = None, *, around: AroundSite | None = None
) -> list[RecordedCall]:
    """Take the next step, or the one after a state, and record the calls of its forward pass in order, without those
    that compute nothing: casts, views, and memory that is not written to.
    """
    if state is not None:
        replay.restore(state)
    recorded: list[RecordedCall] = []
    sites = Sites()

    def around_site(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert around is not None
        assert observer.begun is not None
        if func is TO_COPY and args[0].is_floating_point():
            return func(*args, **kwargs)
        return around(sites.site(observer.begun), func, args, kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if call.is_cast:
            return
        site = sites.passed(call)
        if call.phase != "forward" and not _is_random(call.operator):  # a later turn may draw after backward
            return
        if not call.outputs or call.operator in UNWRITTEN:
            return
        floats = [one for one in tensors_in(result) if one.is_floating_point() and one.layout == torch.strided]
        if not floats or (not call.operator.endswith("_") and _storages(floats) <= _storages(args)):
            return  # another view of what it took
        used = floats[:1] if call.operator.startswith(_SAVING) else floats
        one = RecordedCall(
            call=call,
            site=site,
            results=tuple(map(selected, used)),
            choices=_choices((args, kwargs)),
            draws=_draws(call, args, floats),
        )
        recorded.append(one)

    replay.read_ahead()
    with observe(replay.model, on_call, around=None if around is None else around_site) as observer:
        replay.step()
    return recorded


def matched(
    own: Sequence[RecordedCall], baseline: Sequence[RecordedCall]
) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Match the calls of two steps of one model in different precision, in the order of the first.

    A call matches the one of the same operator, module and line that comes after as many of its kind, if the results
    have the same numbers of elements. Calls that only one of the two makes have no match.
    """
    by_site = {one.site: one for one in baseline}
    for one in own:
        other = by_site.get(one.site)
        if other is not None and [x.numel() for x in one.results] == [x.numel() for x in other.results]:
            yield one, other


def relative_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest of the relative errors of several results: 2-norm of the difference over that of the exact values.

    A result that is not finite where the exact one is has an infinite error; one that is exactly zero has none.
    Differences that no training notices, as kernels in bfloat16 have that flush the smallest numbers to zero, are none.
    """
    return max((_relative_error(one, other) for one, other in zip(results, exact, strict=True)), default=0.0)


def selected(tensor: Tensor) -> Tensor:
    """Even selection of a tensor's elements, float32 on the host: all, or every n-th."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _MOST_KEPT))].to("cpu", torch.float32, copy=True)


def _relative_error(result: Tensor, exact: Tensor) -> float:
    known = exact.isfinite()
    if not known.all():
        result, exact = result[known], exact[known]
    if not result.isfinite().all():
        return float("inf")
    difference = result.double() - exact.double()
    difference[difference.abs() < _NOTHING] = 0.0
    norm = float(torch.linalg.vector_norm(exact.double()))
    return float(torch.linalg.vector_norm(difference)) / norm if norm > 0 else 0.0


def _choices(arguments: object) -> tuple[float, ...]:
    found: list[float] = []
    for one in tree_leaves(arguments):
        if isinstance(one, int | float):
            found.append(one)
        elif isinstance(one, Tensor) and not one.is_floating_point() and not one.is_complex():
            values = one.detach().reshape(-1).to(torch.int64)
            order = torch.arange(1, values.numel() + 1, device=values.device)
            found += [float(values.sum()), float((values * order % 65_521).sum())]
    return tuple(found)


def _draws(call: Call, args: Sequence[Any], results: Sequence[Tensor]) -> bool:
    if not _is_random(call.operator):
        return False
    values = [one for one in tensors_in(args) if one.is_floating_point()]
    return call.operator.endswith("_like") or _storages(values) <= _storages(results)


@cache
def _is_random(operator: str) -> bool:
    """Tell whether torch marks an operator, written as `aten.randn`, as one that takes numbers of a generator."""
    namespace, _, name = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overloads = () if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads)


def _storages(value: object) -> set[int]:
    return {one.untyped_storage().data_ptr() for one in tensors_in(value)}


Rounds = Callable[[Tensor, torch.dtype], Tensor]
"""A function that rounds the values of a tensor to a dtype, and returns them in its own."""


def to_nearest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest number of a dtype."""
    return tensor.detach().to(dtype).to(tensor.dtype)


class Noise:
    """Random relative changes of tensors on one device, the same sequence each time."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)

    def times(self, tensor: Tensor, width: float) -> Tensor:
        """Multiply each element by a number drawn evenly from 1 +- width / 2."""
        drawn = torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=self._generator)
        return tensor.detach() * drawn.sub_(0.5).mul_(width).add_(1)

    def round(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Round to a dtype after a random change by up to its unit roundoff."""
        return to_nearest(self.times(tensor, torch.finfo(dtype).eps), dtype)
