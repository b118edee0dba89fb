"""Activations that stay in float32 although the training computes in half precision, by what keeps them there."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.doctor.memory.findings import (
    Float32AutocastOff,
    Float32Cast,
    Float32Policy,
    Float32Promoted,
    WideFinding,
)
from ampsweep.doctor.memory.traced import Held, TracedMemory
from ampsweep.doctor.spot import Spot, common_module
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.functions import CallIdentity

_CONSTANTS: Final = ("parameter", "buffer", "attribute", "constant")


@dataclass(frozen=True)
class WideActivations:
    """The activations in float32 at the peak that one cause keeps there."""

    kind: type[WideFinding]
    num_bytes: int
    origin: TensorOrigin
    """The call that makes most of them wide."""
    modules: list[str]
    """Those in which it happens, the one with the most bytes at first."""
    identities: tuple[CallIdentity, ...]


def wide_activations(memory: TracedMemory, *, autocasts: bool) -> list[WideActivations]:
    """All activations in float32 at the peak by what keeps them there, those with the most bytes at first.

    Args:
        autocasts: the training uses autocast.
    """
    groups: dict[tuple[type[WideFinding], CallIdentity | None], list[tuple[Held, TensorOrigin]]] = defaultdict(list)
    for held in memory.held:
        if held.category in ("activations", "other") and held.origin is not None and held.origin.dtype == torch.float32:
            found = _cause(held.origin, autocasts=autocasts)
            if found is not None and _is_in_model(found[1]):  # a loss has reasons of its own for float32
                kind, origin = found
                assert origin.function is not None
                key = None if kind is Float32AutocastOff else origin.function.identity
                groups[kind, key].append((held, origin))
    return sorted((_group(kind, held) for (kind, _), held in groups.items()), key=lambda one: -one.num_bytes)


def _group(kind: type[WideFinding], members: list[tuple[Held, TensorOrigin]]) -> WideActivations:
    modules = Spot.of((origin.call, held.num_bytes) for held, origin in members if origin.call is not None).modules
    if kind is Float32AutocastOff:
        modules = [*dict.fromkeys([common_module(modules), *modules])]
    origins = (one for _, origin in members for one in _ancestors(origin, _without_autocast))
    identities = dict.fromkeys(one.function.identity for one in origins if one.function is not None)
    return WideActivations(
        kind=kind,
        num_bytes=sum(held.num_bytes for held, _ in members),
        origin=max(members, key=lambda one: one[0].num_bytes)[1],
        modules=modules,
        identities=tuple(identities) if kind is Float32AutocastOff else tuple(identities)[:1],
    )


def _is_in_model(origin: TensorOrigin) -> bool:
    return origin.call is not None and origin.call.module is not None


def _without_autocast(origin: TensorOrigin) -> list[TensorOrigin]:
    """The sources of a tensor that were computed with autocast off."""
    return [one for one in origin.sources if one.function is not None and not one.function.is_autocast]


def _ancestors(
    origin: TensorOrigin, sources: Callable[[TensorOrigin], Iterable[TensorOrigin]]
) -> Iterator[TensorOrigin]:
    """The origin and those before it, each once."""
    seen: set[int] = set()
    waiting = [origin]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += sources(one)


def _cause(origin: TensorOrigin, *, autocasts: bool) -> tuple[type[WideFinding], TensorOrigin] | None:
    """The call that has made a tensor wide, or one that it was computed from."""
    one = origin
    while one.call is not None and one.call.phase == "forward" and one.function is not None:
        half = [source for source in one.sources if source.dtype in (torch.float16, torch.bfloat16)]
        wide = [source for source in one.sources if source.dtype == one.dtype]
        if autocasts and not one.function.is_autocast:
            return Float32AutocastOff, one
        if one.kind == "cast" and half:
            return Float32Cast, one
        if one.kind == "autocast" and half:
            return Float32Policy, one
        if half and wide and all(_is_constant(source) for source in wide):
            return Float32Promoted, one
        if not wide:
            return None
        one = next((source for source in wide if not _is_constant(source)), wide[0])
    return None


def _is_constant(origin: TensorOrigin) -> bool:
    """Tell whether a tensor is one of the model's own, or computed from such tensors alone, without parameters."""

    def is_known(one: TensorOrigin) -> bool:
        return one.kind in _CONSTANTS

    made = _ancestors(origin.made, lambda one: () if is_known(one) else (source.made for source in one.sources))
    return all(
        is_known(one) or (one.call is not None and all(source.kind != "parameter" for source in one.sources))
        for one in made
    )
