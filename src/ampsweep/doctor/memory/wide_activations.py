"""Activations that stay in float32 although the training computes in half precision, by what keeps them there."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from ampsweep.doctor.memory.findings import (
    Float32AutocastOff,
    Float32Cast,
    Float32Policy,
    Float32Promoted,
    WideFinding,
)
from ampsweep.doctor.memory.traced import Action, Held, TracedMemory
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.tracing.functions import CallIdentity

Cause = Literal["autocast_off", "cast", "promoted", "policy"]
"""`autocast_off`: autocast is switched off around the call; `cast`: the code casts to float32; `promoted`: a tensor in
half precision meets a constant, a buffer or a parameter in float32; `policy`: autocast computes the function in
float32."""

CAUSES: Final[dict[Cause, tuple[type[WideFinding], Action]]] = {
    "autocast_off": (Float32AutocastOff, "with_autocast"),
    "cast": (Float32Cast, "skip"),
    "promoted": (Float32Promoted, "in_half"),
    "policy": (Float32Policy, "without_autocast"),
}
"""The finding of each cause, and the change with which its activations would be in half precision."""

_CONSTANTS: Final = ("parameter", "buffer", "attribute", "constant")


@dataclass(frozen=True)
class WideActivations:
    """The activations in float32 of one cause at the peak."""

    cause: Cause
    num_bytes: int
    origin: TensorOrigin
    """The call that makes most of them wide."""
    modules: tuple[str, ...]
    """Those in which it happens, the one with the most bytes at first."""
    identities: tuple[CallIdentity, ...]


def wide_activations(memory: TracedMemory, *, autocasts: bool) -> list[WideActivations]:
    """All activations in float32 at the peak by what keeps them there, those with the most bytes at first.

    Args:
        autocasts: the training uses autocast.
    """
    groups: dict[tuple[Cause, CallIdentity | None], list[tuple[Held, TensorOrigin]]] = defaultdict(list)
    for held in memory.held:
        if held.category in ("activations", "other") and held.origin is not None and held.origin.dtype == torch.float32:
            found = _cause(held.origin, autocasts=autocasts)
            if found is not None and _is_in_model(found[1]):  # a loss has reasons of its own for float32
                cause, origin = found
                assert origin.function is not None
                key = None if cause == "autocast_off" else origin.function.identity
                groups[cause, key].append((held, origin))
    return sorted((_group(cause, held) for (cause, _), held in groups.items()), key=lambda one: -one.num_bytes)


def _group(cause: Cause, members: list[tuple[Held, TensorOrigin]]) -> WideActivations:
    sizes: dict[str, int] = defaultdict(int)
    for held, origin in members:
        sizes[_module(origin)] += held.num_bytes
    modules = sorted(sizes, key=lambda name: -sizes[name])
    if cause == "autocast_off":
        modules = [*dict.fromkeys([_common(modules), *modules])]
    identities = dict.fromkeys(one.function.identity for _, origin in members for one in _chain(origin) if one.function)
    return WideActivations(
        cause=cause,
        num_bytes=sum(held.num_bytes for held, _ in members),
        origin=max(members, key=lambda one: one[0].num_bytes)[1],
        modules=tuple(modules),
        identities=tuple(identities) if cause == "autocast_off" else tuple(identities)[:1],
    )


def _is_in_model(origin: TensorOrigin) -> bool:
    return origin.call is not None and origin.call.module is not None


def _module(origin: TensorOrigin) -> str:
    return (origin.call.module if origin.call is not None else None) or ""


def _common(names: list[str]) -> str:
    """The innermost module that all of these are in."""
    split = [name.split(".") for name in names]
    common = 0
    while all(len(one) > common and one[common] == split[0][common] for one in split):
        common += 1
    return ".".join(split[0][:common])


def _is_without_autocast(origin: TensorOrigin) -> bool:
    return origin.function is not None and not origin.function.is_autocast


def _chain(origin: TensorOrigin) -> Iterator[TensorOrigin]:
    """The origin, and those before it that are computed with autocast off, too; each once."""
    seen: set[int] = set()
    waiting = [origin]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if _is_without_autocast(one):
            waiting += reversed([source for source in one.sources if _is_without_autocast(source)])


def _cause(origin: TensorOrigin, *, autocasts: bool) -> tuple[Cause, TensorOrigin] | None:
    """The call that has made a tensor wide, or one that it was computed from."""
    one = origin
    while one.call is not None and one.call.phase == "forward" and one.function is not None:
        half = [source for source in one.sources if source.dtype in (torch.float16, torch.bfloat16)]
        wide = [source for source in one.sources if source.dtype == one.dtype]
        if autocasts and not one.function.is_autocast:
            return "autocast_off", one
        if one.kind == "cast" and half:
            return "cast", one
        if one.kind == "autocast" and half:
            return "policy", one
        if half and wide and all(_is_constant(source) for source in wide):
            return "promoted", one
        if not wide:
            return None
        one = next((source for source in wide if not _is_constant(source)), wide[0])
    return None


def _is_constant(origin: TensorOrigin) -> bool:
    """Tell whether a tensor is one of the model's own, or computed from none but such that are no parameters."""
    seen: set[int] = set()
    waiting = [origin]
    while waiting:
        made = waiting.pop().made
        if made.kind in _CONSTANTS or id(made) in seen:
            continue
        seen.add(id(made))
        if made.call is None or any(one.kind == "parameter" for one in made.sources):
            return False
        waiting += made.sources
    return True
