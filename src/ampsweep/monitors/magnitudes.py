"""Magnitudes of tensors counted by exponent: selections are taken on the device, and counted on the host later."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ampsweep.numeric_formats import dtype_name
from ampsweep.records.numerics import TENSOR_KINDS, Magnitudes, TensorKind

NUM_SELECTED: Final = 4096  # most elements counted per tensor; a share's standard error is below 0.8 percentage points

_BIAS, _DIGITS, _NOT_FINITE = 1023, 52, 0x7FF
"""The bias of a float64's exponent, the bits below the exponent, and the exponent of inf and NaN."""

_Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(slots=True, eq=False)
class SelectedElements:
    """An even selection of a tensor's elements, copied when it was taken."""

    kind: TensorKind
    layer: str
    dtype: torch.dtype
    values: Tensor  # the elements (N,), float32; float64 of a float64 tensor
    extremes: tuple[Tensor, ...]  # minimum and maximum of the whole tensor, or NaN; empty if `values` suffice
    is_scaled: bool = False
    is_unchanged: Tensor | None = None  # in an update, by element with a gradient: it has the same bits


@dataclass(frozen=True, slots=True)
class CountedTensor:
    magnitudes: Magnitudes
    num_unchanged: int = 0
    num_updated: int = 0


@dataclass
class MagnitudeTable:
    """The magnitudes of a training's tensors, added up over its steps."""

    layers: Sequence[str] = ()
    _rows: dict[tuple[str, str, str], Magnitudes] = field(default_factory=dict)
    _updates: dict[str, list[int]] = field(default_factory=dict)
    """By parameter, the numbers of elements that applied steps left unchanged, and of all elements with a gradient."""

    def add(self, counted: list[CountedTensor]) -> None:
        seen = set[tuple[str, str, str]]()
        for tensor in counted:
            new = tensor.magnitudes
            key = (new.kind, new.layer, new.dtype)
            self._rows[key] = added(self._rows[key], new, same_step=key in seen) if key in self._rows else new
            seen.add(key)
            if tensor.num_updated:
                before = self._updates.setdefault(new.layer, [0, 0])
                before[0] += tensor.num_unchanged
                before[1] += tensor.num_updated

    def load(self, magnitudes: list[Magnitudes]) -> None:
        for row in magnitudes:
            self._rows[row.kind, row.layer, row.dtype] = row
            if row.unchanged_pct is not None:
                self._updates[row.layer] = [round(row.unchanged_pct / 100 * row.num_elements), row.num_elements]

    def magnitudes(self) -> list[Magnitudes]:
        """All counts by kind, and within a kind in the order of `layers`."""
        places = {layer: place for place, layer in enumerate(self.layers)}
        rows = sorted(
            self._rows.values(), key=lambda row: (TENSOR_KINDS.index(row.kind), places.get(row.layer, len(places)))
        )
        return [replace(row, unchanged_pct=self._unchanged_pct(row)) for row in rows]

    def _unchanged_pct(self, row: Magnitudes) -> float | None:
        unchanged, updated = self._updates.get(row.layer, (0, 0)) if row.kind == "update" else (0, 0)
        return 100 * unchanged / updated if updated else None


def selected(kind: TensorKind, layer: str, tensor: Tensor, *, is_scaled: bool = False) -> SelectedElements | None:
    """Take a selection of a floating-point tensor without waiting for the device; None if it is empty."""
    tensor = flat(tensor)
    if not tensor.numel():
        return None
    return SelectedElements(kind, layer, tensor.dtype, taken(tensor), tuple(tensor.aminmax()), is_scaled)


def flat(tensor: Tensor) -> Tensor:
    """A view (N,) of a tensor's elements in the order of their addresses; a copy if there are gaps."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.to_dense()
    if tensor.dtype.itemsize == 1:  # float8, for which torch has few operators
        tensor = tensor.float()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.reshape(-1)


def all_finite(tensor: Tensor) -> bool:
    """Return True if all elements of a floating-point tensor are finite; waits for the device."""
    elements = flat(tensor)
    return not elements.numel() or all(map(math.isfinite, elements.aminmax()))


def taken(elements: Tensor) -> Tensor:
    """Copy an even selection of the elements (N,), as float32 or float64."""
    return elements[:: _stride(elements.numel())][:NUM_SELECTED].to(_wide(elements.dtype), copy=True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@lru_cache(maxsize=4096)
def _stride(numel: int) -> int:
    """The distance between selected elements, coprime with every size of the tensor so that no column is left out."""
    stride = max(numel // NUM_SELECTED, 1)
    while math.gcd(stride, numel) > 1:
        stride -= 1
    return stride


def counted(selections: list[SelectedElements], scale: float = 1.0) -> list[CountedTensor]:
    """Count selections by exponent, with gradients of the scaled loss divided by `scale`; waits for the device."""
    if not selections:
        return []
    dtype = torch.float64 if any(each.values.dtype == torch.float64 for each in selections) else torch.float32
    values = torch.cat([each.values.to(dtype) for each in selections]).cpu().double().numpy()
    lengths = [len(each.values) for each in selections]
    factors = np.array([1 / scale if each.is_scaled else 1.0 for each in selections])
    with np.errstate(all="ignore"):
        if scale != 1.0:
            values *= np.repeat(factors, lengths)
        magnitudes, largest = np.abs(values), _largest(selections) * factors
        split = np.split(magnitudes, np.cumsum(lengths[:-1]))
        return [_counted(*each) for each in zip(selections, split, largest.tolist(), strict=True)]


def _largest(selections: list[SelectedElements]) -> _Floats:
    """The largest magnitude of each whole tensor; NaN without extremes."""
    extremes = [value for selection in selections for value in selection.extremes]
    numbers = iter(torch.stack([value.to(_wide(value.dtype)) for value in extremes]).abs().tolist() if extremes else [])
    return np.array([np.max([next(numbers) for _ in each.extremes] or [np.nan]) for each in selections])


def _counted(selection: SelectedElements, magnitudes: _Floats, most: float) -> CountedTensor:
    bins = np.bincount(magnitudes.view(np.int64) >> _DIGITS, minlength=_NOT_FINITE + 1)
    num_zeros, num_nonfinite = int(bins[0]), int(bins[_NOT_FINITE])
    bins = bins[1:_NOT_FINITE]
    filled = np.flatnonzero(bins)
    begin, end = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    if not math.isfinite(most):
        most = float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0))
    unchanged = selection.is_unchanged
    return CountedTensor(
        Magnitudes(
            layer=selection.layer,
            kind=selection.kind,
            dtype=dtype_name(selection.dtype),
            num_steps=1,
            num_elements=len(magnitudes),
            num_zeros=num_zeros,
            num_nonfinite=num_nonfinite,
            max_abs=most,
            first_exponent=1 - _BIAS + begin if len(filled) else 0,
            counts=bins[begin:end].tolist(),
        ),
        num_unchanged=0 if unchanged is None else int(unchanged.sum()),
        num_updated=0 if unchanged is None else len(unchanged),
    )


def added(first: Magnitudes, other: Magnitudes, *, same_step: bool = False) -> Magnitudes:
    """Add the magnitudes of a tensor in two steps, or in two calls of its module in the same step."""
    counts = Counter[int]()
    for each in (first, other):
        counts.update({each.first_exponent + index: count for index, count in enumerate(each.counts)})
    lowest = min(counts, default=0)
    return replace(
        first,
        num_steps=first.num_steps + (0 if same_step else other.num_steps),
        num_elements=first.num_elements + other.num_elements,
        num_zeros=first.num_zeros + other.num_zeros,
        num_nonfinite=first.num_nonfinite + other.num_nonfinite,
        max_abs=max(first.max_abs, other.max_abs),
        first_exponent=lowest,
        counts=[counts[exponent] for exponent in range(lowest, max(counts, default=-1) + 1)],
    )
