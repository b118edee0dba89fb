"""The magnitudes of tensors, counted by exponent: selections are taken on the device, and counted on the host later."""

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
from ampsweep.record.numerics import TENSOR_KINDS, Magnitudes, TensorKind

NUM_SELECTED: Final = 4096
"""Elements of a tensor that are counted at most; shares of them are known to 0.8 percent points, one standard error."""

_BIAS, _DIGITS, _NOT_FINITE = 1023, 52, 0x7FF
"""The bias of a float64's exponent, the bits below the exponent, and the exponent of inf and NaN."""

_Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(slots=True, eq=False)
class SelectedElements:
    """An even selection of a tensor's elements, as they were when it was taken."""

    kind: TensorKind
    layer: str
    dtype: torch.dtype
    values: Tensor
    """The elements (N,), float32; float64 of a float64 tensor."""
    extremes: tuple[Tensor, ...]
    """Smallest and largest of all the tensor's elements, NaN if one is; none where those of `values` are to do."""
    is_scaled: bool = False
    """True if the values are gradients of the scaled loss."""
    is_unchanged: Tensor | None = None
    """In an update, by element (N,): the parameter has the same bits as before. Elements without gradient are left out,
    so that it may have fewer."""


@dataclass(frozen=True, slots=True)
class CountedTensor:
    """A selection that was counted."""

    magnitudes: Magnitudes
    """The magnitudes of this selection alone."""
    num_unchanged: int = 0
    num_updated: int = 0
    has_nonfinite: bool = False
    """One of all the tensor's elements is not finite."""


@dataclass
class MagnitudeTable:
    """The magnitudes of a training's tensors, added up over its steps."""

    layers: Sequence[str] = ()
    """The order in which layers are listed; those that are not in it come last."""
    _rows: dict[tuple[str, str, str], Magnitudes] = field(default_factory=dict)
    _updates: dict[str, list[int]] = field(default_factory=dict)
    """By parameter: its elements that applied steps left as they were, and all that had a gradient then."""

    def add(self, counted: list[CountedTensor]) -> None:
        seen = set[tuple[str, str, str]]()
        for one in counted:
            new = one.magnitudes
            key = (new.kind, new.layer, new.dtype)
            self._rows[key] = added(self._rows[key], new, same_step=key in seen) if key in self._rows else new
            seen.add(key)
            if one.num_updated:
                before = self._updates.setdefault(new.layer, [0, 0])
                before[0] += one.num_unchanged
                before[1] += one.num_updated

    def load(self, magnitudes: list[Magnitudes]) -> None:
        """Go on from what another process has counted."""
        for one in magnitudes:
            self._rows[one.kind, one.layer, one.dtype] = one
            if one.unchanged_pct is not None:
                self._updates[one.layer] = [round(one.unchanged_pct / 100 * one.num_elements), one.num_elements]

    def magnitudes(self) -> list[Magnitudes]:
        """Everything counted, by kind; of one kind in the order of `layers`."""
        places = {layer: place for place, layer in enumerate(self.layers)}
        rows = sorted(
            self._rows.values(),
            key=lambda one: (TENSOR_KINDS.index(one.kind), places.get(one.layer, len(places))),
        )
        return [replace(one, unchanged_pct=self._unchanged_pct(one)) for one in rows]

    def _unchanged_pct(self, one: Magnitudes) -> float | None:
        unchanged, updated = self._updates.get(one.layer, (0, 0)) if one.kind == "update" else (0, 0)
        return 100 * unchanged / updated if updated else None


def selected(kind: TensorKind, layer: str, tensor: Tensor, *, is_scaled: bool = False) -> SelectedElements | None:
    """Take a selection of a floating-point tensor; nothing waits for the device. None of an empty one."""
    tensor = flat(tensor)
    if not tensor.numel():
        return None
    return SelectedElements(kind, layer, tensor.dtype, taken(tensor), tuple(tensor.aminmax()), is_scaled)


def flat(tensor: Tensor) -> Tensor:
    """A view (N,) of a tensor's elements in the order of their addresses; a copy where they have gaps between them."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.to_dense()
    if tensor.dtype.itemsize == 1:  # fp8, for which torch has hardly an operator
        tensor = tensor.float()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.reshape(-1)


def all_finite(tensor: Tensor) -> bool:
    """Tell whether all elements of a floating-point tensor are finite, without a copy of it; waits for the device."""
    elements = flat(tensor)
    return not elements.numel() or all(map(math.isfinite, elements.aminmax()))


def taken(elements: Tensor) -> Tensor:
    """Copy an even selection of the elements (N,), as float32 or float64."""
    return elements[:: _stride(elements.numel())][:NUM_SELECTED].to(_wide(elements.dtype), copy=True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@lru_cache(maxsize=4096)
def _stride(numel: int) -> int:
    """The distance between selected elements: coprime with every size of the tensor, so that no column is left out."""
    stride = max(numel // NUM_SELECTED, 1)
    while math.gcd(stride, numel) > 1:
        stride -= 1
    return stride


def counted(selections: list[SelectedElements], scale: float = 1.0) -> list[CountedTensor]:
    """Count selections by exponent; waits for the device.

    Args:
        scale: gradients of the scaled loss are divided by it.
    """
    if not selections:
        return []
    dtype = torch.float64 if any(one.values.dtype == torch.float64 for one in selections) else torch.float32
    values = torch.cat([one.values.to(dtype) for one in selections]).cpu().double().numpy()
    lengths = [len(one.values) for one in selections]
    factors = np.array([1 / scale if one.is_scaled else 1.0 for one in selections])
    with np.errstate(all="ignore"):
        if scale != 1.0:
            values *= np.repeat(factors, lengths)
        magnitudes, largest = np.abs(values), _largest(selections) * factors
        parts = np.split(magnitudes, np.cumsum(lengths[:-1]))
        return [_counted(*one) for one in zip(selections, parts, largest.tolist(), strict=True)]


def _largest(selections: list[SelectedElements]) -> _Floats:
    """The largest magnitude of all elements of each tensor; NaN where nobody has looked at them."""
    extremes = [one for selection in selections for one in selection.extremes]
    numbers = iter(torch.stack([one.to(_wide(one.dtype)) for one in extremes]).abs().tolist() if extremes else [])
    return np.array([np.max([next(numbers) for _ in one.extremes] or [np.nan]) for one in selections])


def _counted(selection: SelectedElements, magnitudes: _Floats, most: float) -> CountedTensor:
    bins = np.bincount(magnitudes.view(np.int64) >> _DIGITS, minlength=_NOT_FINITE + 1)
    num_zeros, num_nonfinite = int(bins[0]), int(bins[_NOT_FINITE])
    first, bins = 1 - _BIAS, bins[1:_NOT_FINITE]
    filled = np.flatnonzero(bins)
    begin, end = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    has_nonfinite = bool(num_nonfinite) or (bool(selection.extremes) and not math.isfinite(most))
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
            first_exponent=first + begin if len(filled) else 0,
            counts=bins[begin:end].tolist(),
        ),
        num_unchanged=0 if unchanged is None else int(unchanged.sum()),
        num_updated=0 if unchanged is None else len(unchanged),
        has_nonfinite=has_nonfinite,
    )


def added(one: Magnitudes, other: Magnitudes, *, same_step: bool = False) -> Magnitudes:
    """Add up the magnitudes of one tensor in two steps, or in two calls of its module in the same step."""
    counts = Counter[int]()
    for each in (one, other):
        counts.update({each.first_exponent + index: count for index, count in enumerate(each.counts)})
    first = min(counts, default=0)
    return replace(
        one,
        num_steps=one.num_steps + (0 if same_step else other.num_steps),
        num_elements=one.num_elements + other.num_elements,
        num_zeros=one.num_zeros + other.num_zeros,
        num_nonfinite=one.num_nonfinite + other.num_nonfinite,
        max_abs=max(one.max_abs, other.max_abs),
        first_exponent=first,
        counts=[counts[exponent] for exponent in range(first, max(counts, default=-1) + 1)],
    )
