"""A step of which each operator's result is kept, and the match of two such steps in different precision."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ampsweep.doctor.replay import Replay
from ampsweep.tracing.calls import UNWRITTEN, Call, Site, Sites, observe
from ampsweep.tracing.ledger import tensors_in
from ampsweep.tracing.operators import backward_node

_NOTHING: Final = 2.0**-100
"""Differences of values below this are none."""
_MOST_KEPT: Final = 2**14
"""Elements of a result that are kept at most, evenly selected: enough for the norm of an error to 1 %."""

_SAVING: Final = ("aten.native_", "aten._native_", "aten._scaled_dot_product", "aten._fused_rms_norm", "aten.cudnn_")
"""The beginnings of names of operators that compute their first result in forward; the others are kept for backward,
and may have no digits that matter, as the mean of values that were normalized before."""

Key = tuple[str, str | None, str | None, str, int]
"""Phase, module, place, operator, and the number of such calls before it that are recorded."""
AroundSite = Callable[[Site, Any, Sequence[Any], dict[str, Any]], Any]
"""A function that gets a call of an operator, makes it and returns the result, or another one."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A call of an operator, with elements of its floating-point results in float32 on the host."""

    call: Call
    site: Site
    key: Key
    results: tuple[Tensor, ...]
    choices: tuple[float, ...]
    """Its arguments that are numbers, and checksums of those that are tensors of whole numbers, such as indices."""
    draws: bool
    """It does nothing but fill a tensor with random numbers; of one seed, another dtype may get others."""
    is_gradient_sum: bool
    """It adds up the gradients of one tensor, as autograd does by itself: in another order, or of fewer, where a cast
    in one of two steps makes two tensors of it."""

    @property
    def roundoff(self) -> float:
        """The relative error of rounding to the least precise dtype of its results."""
        return max(torch.finfo(dtype).eps / 2 for dtype in self.call.outputs if dtype.is_floating_point)


def record_step(replay: Replay, *, around: AroundSite | None = None) -> list[RecordedCall]:
    """Take the next step and record its calls in order, without those that compute nothing: casts, views, and memory
    that nobody has written to.

    Where there is a scaler, results of backward are multiplied by its scale, as they come.
    """
    recorded: list[RecordedCall] = []
    sites = Sites()
    seen: Counter[tuple[Any, ...]] = Counter()

    def around_site(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert around is not None
        assert observer.begun is not None
        return around(sites.site(observer.begun), func, args, kwargs)

    def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        site = sites.passed(call)
        if call.phase == "update" and not _is_random(call.operator):  # what draws for a later turn is in that phase
            return
        if call.is_cast or not call.outputs or call.operator in UNWRITTEN:
            return
        floats = [one for one in tensors_in(result) if one.is_floating_point() and one.layout == torch.strided]
        if not floats or (not call.operator.endswith("_") and _share_storage(args, floats)):
            return  # another view of what it took
        key = (call.phase, call.module, call.place, call.operator, seen[site[:4]])
        seen[site[:4]] += 1
        used = floats[:1] if call.phase == "forward" and call.operator.startswith(_SAVING) else floats
        results = tuple(map(selected, used))
        choices, draws = _choices((args, kwargs)), _draws(call, args, floats)
        recorded.append(RecordedCall(call, site, key, results, choices, draws, _is_gradient_sum(call)))

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
    by_key = {one.key: one for one in baseline}
    for one in own:
        other = by_key.get(one.key)
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
    norm, error = float(torch.linalg.vector_norm(exact.double())), float(torch.linalg.vector_norm(difference))
    return 0.0 if error == 0 else error / norm if norm > 0 else 0.0


def _choices(arguments: object) -> tuple[float, ...]:
    leaves = tree_leaves(arguments)
    numbers = [one for one in leaves if isinstance(one, int | float)]
    whole = [one for one in leaves if isinstance(one, Tensor) and not one.is_floating_point() and not one.is_complex()]
    return (*numbers, *(number for one in whole for number in _checksum(one)))


def _checksum(tensor: Tensor) -> tuple[float, float]:
    """Two numbers that hardly another tensor of whole numbers has."""
    values = tensor.detach().reshape(-1).to(torch.int64)
    order = torch.arange(1, values.numel() + 1, device=values.device)
    return float(values.sum()), float((values * order % 65_521).sum())


def _draws(call: Call, args: Sequence[Any], results: Sequence[Tensor]) -> bool:
    if not _is_random(call.operator):
        return False
    filled = {one.untyped_storage().data_ptr() for one in results}
    values = [one for one in tensors_in(args) if one.is_floating_point()]
    return call.operator.endswith("_like") or all(one.untyped_storage().data_ptr() in filled for one in values)


@cache
def _is_random(operator: str) -> bool:
    """Tell whether torch marks an operator, written as `aten.randn`, as one that takes numbers of a generator."""
    namespace, _, name = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overloads = () if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads)


def _is_gradient_sum(call: Call) -> bool:
    """Tell whether autograd itself has made a call that is over; a custom function's backward pass is user's code."""
    node = backward_node()
    return (
        call.phase == "backward"
        and call.operator in ("aten.add", "aten.add_")
        and not isinstance(node, torch.autograd.function.BackwardCFunction)
    )


def _share_storage(args: Sequence[Any], results: Sequence[Tensor]) -> bool:
    storages = {one.untyped_storage().data_ptr() for one in tensors_in(args)}
    return all(one.untyped_storage().data_ptr() in storages for one in results)


Rounds = Callable[[Tensor, torch.dtype], Tensor]
"""A function that rounds the values of a tensor to a dtype, and returns them in its own."""


def rounding(seed: int | None) -> Rounds:
    """A function that rounds to the nearest number or, of a seed, after a random change by up to the unit roundoff."""
    noise = None if seed is None else Noise(seed)

    def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        values = tensor.detach() if noise is None else noise.times(tensor, torch.finfo(dtype).eps)
        return values.to(dtype).to(tensor.dtype)

    return rounded


class Noise:
    """Random relative changes of tensors; their values repeat after 65,521 elements, a prime number, as drawing a new
    one for each would take longer than most operators."""

    def __init__(self, seed: int) -> None:
        self._values = torch.rand(65_521, generator=torch.Generator().manual_seed(seed)) - 0.5
        self._begin = 0

    def times(self, tensor: Tensor, width: float) -> Tensor:
        """Multiply each element by a number that is evenly distributed in 1 +- width / 2."""
        flat = tensor.detach().reshape(-1)
        changes = self._values.to(flat.device, flat.dtype).mul(width).add_(1).roll(self._begin)
        self._begin += 7919  # another prime: no two tensors are changed alike
        num_rows, rest = divmod(flat.numel(), len(changes))
        changed = torch.empty_like(flat)
        whole = num_rows * len(changes)
        torch.mul(flat[:whole].view(num_rows, len(changes)), changes, out=changed[:whole].view(num_rows, len(changes)))
        torch.mul(flat[whole:], changes[:rest], out=changed[whole:])
        return changed.view(tensor.shape)
