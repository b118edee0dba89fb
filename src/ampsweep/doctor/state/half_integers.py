"""Integers that half precision rounds although something is made of them: an index, a position, an angle."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.comparison import SideBySide
from ampsweep.doctor.side_by_side.recorded_step import (
    RecordedCall,
    matched,
    record_step,
    selected,
    storages,
    to_nearest,
)
from ampsweep.doctor.smallest_change import smallest_change
from ampsweep.doctor.state.findings import IntegersRounded, TriedExact
from ampsweep.doctor.tensor_origins import held_tensors
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Site
from ampsweep.observe.operators import TO_COPY, schema_of
from ampsweep.precision.parameter_chunks import HALF

_LARGE_ERROR: Final = 2.0**-4  # the relative error by rounded integers alone from which a result is wrong
_MOST_TRIED: Final = 4  # lines that round integers, of which the consequences are looked for


@dataclass(frozen=True)
class _Numbers:
    exact: float  # the first that is rounded, and what it becomes
    rounded: float
    num_rounded: int
    num_all: int
    largest_error: float


@dataclass(frozen=True)
class _Rounded:
    numbers: _Numbers
    dtype: torch.dtype
    site: Site  # the call that rounds
    made_by: Site | None  # the call of the float32 step that makes the exact integers
    held: str | None  # or the name of the tensor that holds them


@dataclass(frozen=True)
class _Effect:
    """What goes wrong in a float32 step in which these integers alone are rounded."""

    site: Site
    error: float | None  # of its result; None: it gets other indices


def find_rounded_integers(
    examined: ExaminedTraining, sides: SideBySide, also: Callable[[Variant], bool] = lambda _: True
) -> IntegersRounded | None:
    """Find the first line that rounds integers from which other indices or results without digits come, and the
    smallest change, which `also` must accept, with which a step rounds them nowhere."""
    own = examined.replay()
    found = {rounded.site[2] or rounded.held: rounded for rounded in reversed(_rounded_in(own, sides))}
    tried = [*found.values()][::-1][:_MOST_TRIED]
    exact = _step_with(sides, None)[1] if tried else {}
    for rounded in tried:
        if (effect := _effect(sides, rounded, exact)) is not None:
            return _finding(examined, sides, rounded, effect, also)
    return None


def _finding(
    examined: ExaminedTraining, sides: SideBySide, rounded: _Rounded, effect: _Effect, also: Callable[[Variant], bool]
) -> IntegersRounded:
    _, module, place, operator, _ = rounded.site
    numbers, modules = rounded.numbers, [] if module is None else [module]

    def is_exact(replay: Replay) -> bool:
        return numbers not in [other.numbers for other in _rounded_in(replay, sides)]

    change = smallest_change(examined, place, [modules], is_exact, also)
    return IntegersRounded(
        modules=modules,
        place=place,
        operator=operator or None,
        held=rounded.held,
        dtype=dtype_name(rounded.dtype),
        exact=numbers.exact,
        rounded=numbers.rounded,
        num_rounded=numbers.num_rounded,
        num_all=numbers.num_all,
        effect_operator=effect.site[3],
        effect_place=effect.site[2],
        effect_pct=None if effect.error is None else 100 * effect.error,
        change=change or Change(),
        proof=None if change is None else TriedExact(mends=True),
    )


def _rounded_in(replay: Replay, sides: SideBySide) -> list[_Rounded]:
    """The roundings of integers in a step, in order: of tensors that are held, then by casts and other calls."""
    found: list[_Rounded] = []
    makers: dict[int, Site] = {}
    names_of: dict[int, str] = {}

    def around(site: Site, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        given = storages(args)
        half = next((tensor for tensor in tensors_in(result) if tensor.dtype in HALF and not tensor.is_sparse), None)
        if site[0] == "forward" and half is not None and (numbers := _rounding(func, args, kwargs, half)) is not None:
            source = next(iter(given), 0) if site[4] < 0 else None
            made_by = site if source is None else makers.get(source)
            name = None if made_by is not None or source is None else names_of.get(source)
            if made_by is not None or name is not None:
                found.append(_Rounded(numbers, half.dtype, site, made_by, name))
        for storage in () if site[4] < 0 else storages(result) - given:
            makers[storage] = site
        return result

    replay.restore(sides.state)
    exact = {name: tensor for _, name, tensor in _held(sides.baseline)}
    for _, name, tensor in _held(replay):
        names_of |= dict.fromkeys(storages(tensor), name)
        if tensor.dtype in HALF and name in exact and (numbers := _difference(exact[name], tensor)) is not None:
            module = name.rpartition(".")[0]
            found.append(_Rounded(numbers, tensor.dtype, ("forward", module, None, "", 0), None, name))
    record_step(replay, around=around)
    return found


def _held(replay: Replay) -> Iterator[tuple[object, str, Tensor]]:
    return held_tensors(replay.model, (), replay.trainer.task)


def _rounding(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> _Numbers | None:
    """The integers that a call rounds; None if float32 would not make other integers of the same arguments."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if is_random or schema_of(func).is_mutable or func.namespace != "aten" or not result.numel():
        return None
    if not _are_integers(result[(0,) * max(result.dim() - 1, 0)]) or not _are_integers(result):  # a row first: faster
        return None
    if float(result.abs().max()) < 2 / torch.finfo(result.dtype).eps:
        return None
    if func is TO_COPY:
        return _difference(args[0], result)
    wide = {name: torch.float32 if value in HALF else value for name, value in kwargs.items()}
    exact = func(*map_tensors(args, lambda t: t.float() if t.dtype in HALF else t), **wide)
    return _difference(next(tensors_in(exact)), result)


def _difference(exact: Tensor, result: Tensor) -> _Numbers | None:
    if exact.shape != result.shape or not exact.numel() or not _are_integers(exact) or exact.dtype in HALF:
        return None
    values, own = (tensor.detach().reshape(-1).to("cpu", torch.float64) for tensor in (exact, result))
    is_other = values != own
    if not bool(is_other.any()) or not bool(own.isfinite().all()):
        return None
    first = int(is_other.nonzero()[0])
    error = float((values - own).abs().max())
    return _Numbers(float(values[first]), float(own[first]), int(is_other.sum()), len(values), error)


def _are_integers(tensor: Tensor) -> bool:
    return not tensor.is_complex() and bool((tensor == tensor.round()).all()) if tensor.is_floating_point() else True


def _step_with(sides: SideBySide, rounded: _Rounded | None) -> tuple[list[RecordedCall], dict[Site, Tensor]]:
    """Take the float32 step with some integers rounded; return its calls, and the indices and sizes that calls get."""
    indices: dict[Site, Tensor] = {}

    def to_half(tensor: Tensor) -> Tensor:
        return to_nearest(tensor, rounded.dtype) if rounded is not None and tensor.is_floating_point() else tensor

    def around(site: Site, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        indices[site] = _indices((args, kwargs))
        result = func(*args, **kwargs)
        return map_tensors(result, to_half) if rounded is not None and site == rounded.made_by else result

    replay = sides.baseline
    replay.restore(sides.state)
    if rounded is None or rounded.held is None:
        return record_step(replay, around=around), indices
    tensor = next(tensor for _, name, tensor in _held(replay) if name == rounded.held)
    data = tensor.detach()  # shares its memory
    exact = data.clone()
    data.copy_(to_half(exact))
    try:
        return record_step(replay, around=around), indices
    finally:
        data.copy_(exact)


def _indices(arguments: object) -> Tensor:
    """All integers among the arguments of a call, those in tensors too."""
    leaves = (leaf for leaf in tree_leaves(arguments) if not isinstance(leaf, bool))
    found = [leaf for leaf in leaves if isinstance(leaf, int) or (isinstance(leaf, Tensor) and _is_index(leaf))]
    parts = [selected(leaf) if isinstance(leaf, Tensor) else torch.tensor([float(leaf)]) for leaf in found]
    return torch.cat(parts) if parts else torch.empty(0)


def _is_index(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _effect(sides: SideBySide, rounded: _Rounded, exact: Mapping[Site, Tensor]) -> _Effect | None:
    """The first call that gets other indices, each off by no more than the rounding, so that they are these integers
    and no choice; or the first whose result has a large error."""
    recorded, indices = _step_with(sides, rounded)
    errors = {call.site: call.error_beside(base) for call, base in matched(recorded, sides.exact)}
    for site, own in indices.items():
        base = exact.get(site)
        if site[0] != "forward" or site == rounded.made_by or base is None:
            continue
        if (
            base.shape != own.shape
            or 0 < float((own - base).abs().max() if len(own) else 0) <= rounded.numbers.largest_error
        ):
            return _Effect(site, None)
        if errors.get(site, 0.0) >= _LARGE_ERROR:
            return _Effect(site, errors[site])
    return None
