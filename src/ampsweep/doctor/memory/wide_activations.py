"""Activations that stay in float32 although the training computes in half precision, by cause."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.doctor.hot_spots import HotSpot, common_module
from ampsweep.doctor.memory import findings as kinds
from ampsweep.doctor.memory.findings import WideFinding
from ampsweep.doctor.memory.traced_memory import Held, TracedMemory
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import CallIdentity

_CONSTANTS: Final = ("parameter", "buffer", "attribute", "constant")


@dataclass(frozen=True)
class WideActivations:
    kind: type[WideFinding]
    spot: HotSpot[Call]  # its costs are bytes
    modules: list[str]  # where it happens: of autocast first the one around all, else by bytes
    identity: CallIdentity  # of the call that makes most of them wide
    partner: str  # what that gets in float32: the name of a tensor, or a constant


def wide_activations(memory: TracedMemory, *, autocasts: bool) -> list[WideActivations]:
    """All float32 activations at the peak, grouped by cause and sorted by bytes."""
    groups: dict[tuple[type[WideFinding], CallIdentity | None], list[tuple[Held, TensorOrigin]]] = defaultdict(list)
    for held in memory.held:
        if held.category in ("activations", "other") and held.origin is not None and held.origin.dtype == torch.float32:
            kind, origin = _cause(held.origin, autocasts=autocasts) or (None, held.origin)
            is_of_model = origin.call is not None and origin.call.module is not None  # a loss has reasons for float32
            if kind is not None and origin.function is not None and is_of_model:
                identity = None if kind is kinds.Float32AutocastOff else origin.function.identity
                groups[kind, identity].append((held, origin))
    return sorted((_group(kind, held) for (kind, _), held in groups.items()), key=lambda group: -group.spot.cost)


def _group(kind: type[WideFinding], members: list[tuple[Held, TensorOrigin]]) -> WideActivations:
    spot = HotSpot.of((origin.call, held.num_bytes) for held, origin in members if origin.call is not None)
    first = [common_module(spot.modules)] if kind is kinds.Float32AutocastOff else []
    origin = max(members, key=lambda member: member[0].num_bytes)[1]
    partner = next((source.made.name for source in origin.sources if source.dtype == origin.dtype), None)
    assert origin.function is not None
    modules = [*dict.fromkeys([*first, *spot.modules])]
    return WideActivations(kind, spot, modules, origin.function.identity, partner or "a constant")


def _cause(origin: TensorOrigin, *, autocasts: bool) -> tuple[type[WideFinding], TensorOrigin] | None:
    while origin.call is not None and origin.call.phase == "forward" and origin.function is not None:
        half = [source for source in origin.sources if source.dtype in (torch.float16, torch.bfloat16)]
        wide = [source for source in origin.sources if source.dtype == origin.dtype]
        if autocasts and not origin.function.is_autocast:
            return kinds.Float32AutocastOff, origin
        if origin.kind == "cast" and half:
            return kinds.Float32Cast, origin
        if origin.kind == "autocast" and half:
            return None  # autocast knows why
        if half and wide and all(_is_constant(source) for source in wide):
            return kinds.Float32Promoted, origin
        if not wide:
            return None
        origin = next((source for source in wide if not _is_constant(source)), wide[0])
    return None


def _is_constant(origin: TensorOrigin) -> bool:
    """Return True if the model holds a tensor, or computes it from such tensors alone, without parameters."""
    seen, waiting = set[TensorOrigin](), [origin.made]
    while waiting:
        current = waiting.pop()
        if current not in seen and current.kind not in _CONSTANTS:
            seen.add(current)
            if current.call is None or any(source.kind == "parameter" for source in current.sources):
                return False
            waiting += (source.made for source in current.sources)
    return True
