"""Recording of a step with the results of its operators, and the matching of two such steps in different precision."""

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

_NOTHING: Final = 2.0**-100  # smaller differences of values count as none
_MOST_KEPT: Final = 2**14  # elements of a result that are kept at most: enough for the norm of an error to 1 %
_SAVING: Final = ("aten.native_", "aten._native_", "aten._scaled_dot_product", "aten._fused_rms_norm", "aten.cudnn_")
"""Prefixes of operators whose first result is the forward result. The others are kept for backward and may have no
meaningful digits, such as the mean of values that are already normalized."""

AroundSite = Callable[[Site, Any, Sequence[Any], dict[str, Any]], Any]
"""Makes the call of an operator; casts between floating-point dtypes, which are not numbered, have the number -1."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A call of an operator, with elements of its floating-point results in float32 on the host."""

    call: Call
    site: Site  # the same in a step of another precision, as casts are not numbered
    results: tuple[Tensor, ...]
    choices: tuple[float, ...]  # its number arguments, and checksums of its integer tensors, such as indices
    draws: bool  # it only fills a tensor with random numbers; from the same seed another dtype may get others

    @property
    def roundoff(self) -> float:
        """The relative error of rounding to the least precise dtype of its results."""
        return max(torch.finfo(dtype).eps / 2 for dtype in self.call.outputs if dtype.is_floating_point)

    def error_beside(self, exact: "RecordedCall") -> float:
        return relative_error(self.results, exact.results)


Recorded = Sequence[RecordedCall]


def record_step(
    replay: Replay, state: Checkpoint | None = None, *, around: AroundSite | None = None
) -> list[RecordedCall]:
    """Take the next step (or the step after `state`) and record the calls of its forward pass that compute anything."""
    if state is not None:
        replay.restore(state)
    recorded: list[RecordedCall] = []
    sites = Sites()

    def around_site(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert around is not None
        assert observer.begun is not None
        site = sites.site(observer.begun)
        return around((*site[:4], -1) if is_cast(func, args) else site, func, args, kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if call.is_cast:
            return
        site = sites.passed(call)
        if call.phase != "forward" and not _is_random(call.operator):  # a later turn may draw after backward
            return
        if not call.outputs or call.operator in UNWRITTEN:
            return
        floats = [value for value in tensors_in(result) if value.is_floating_point() and value.layout == torch.strided]
        if not floats or (not call.operator.endswith("_") and storages(floats) <= storages(args)):
            return  # a view of an argument
        used = floats[:1] if call.operator.startswith(_SAVING) else floats
        taken = [value for value in tensors_in(args) if value.is_floating_point()]
        draws = _is_random(call.operator) and (call.operator.endswith("_like") or storages(taken) <= storages(floats))
        recorded.append(RecordedCall(call, site, tuple(map(selected, used)), _choices((args, kwargs)), draws))

    replay.read_ahead()
    with observe(replay.model, on_call, around=None if around is None else around_site) as observer:
        replay.step()
    return recorded


def is_cast(func: Any, args: Sequence[Any]) -> bool:
    return func is TO_COPY and bool(args[0].is_floating_point())


def matched(own: Recorded, baseline: Recorded) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Match the calls of two steps by operator, module, line and number among such calls, in the order of the first.
    Calls that only one step makes, or whose results have other sizes, have no match."""
    by_site = {recorded.site: recorded for recorded in baseline}
    for recorded in own:
        other = by_site.get(recorded.site)
        if other is not None and [x.numel() for x in recorded.results] == [x.numel() for x in other.results]:
            yield recorded, other


def relative_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest relative error of several results, in the 2-norm: inf if a result is not finite where the exact value
    is, 0 where the exact values are all zero. Differences too small for any training to notice are ignored."""
    return max((_relative_error(result, other) for result, other in zip(results, exact, strict=True)), default=0.0)


def selected(tensor: Tensor) -> Tensor:
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
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, int | float):
            found.append(leaf)
        elif isinstance(leaf, Tensor) and not leaf.is_floating_point() and not leaf.is_complex():
            values = leaf.detach().reshape(-1).to(torch.int64)
            order = torch.arange(1, values.numel() + 1, device=values.device)
            found += [float(values.sum()), float((values * order % 65_521).sum())]
    return tuple(found)


@cache
def _is_random(operator: str) -> bool:
    """Return True if torch tags an operator, written as `aten.randn`, as using a random generator."""
    namespace, _, name = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overloads = () if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def storages(value: object) -> set[int]:
    """The addresses of the memory of all dense tensors."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_in(value) if tensor.layout is torch.strided}


Rounds = Callable[[Tensor, torch.dtype], Tensor]  # rounds values to a dtype; the result has the tensor's own


def to_nearest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype).to(tensor.dtype)


class Noise:
    """Random relative changes of tensors on a device, always the same sequence."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)

    def times(self, tensor: Tensor, width: float) -> Tensor:
        """Multiply each element by a number drawn uniformly from 1 +- width / 2."""
        drawn = torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=self._generator)
        return tensor.detach() * drawn.sub_(0.5).mul_(width).add_(1)

    def round(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Round to a dtype after a random change by up to its unit roundoff."""
        return to_nearest(self.times(tensor, torch.finfo(dtype).eps), dtype)
