"""The work of a compiled step: what lies between two products becomes one kernel."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, get_args

from ampsweep.observe.operator_work import FusedKind, OperatorWork

_FUSED: Final = get_args(FusedKind)
_KEPT_SHARE: Final = 0.6
"""Of the bytes of a chain beyond its largest operator's, what its kernel moves, too. From published compiled steps."""


def fused(works: Iterable[OperatorWork]) -> Iterator[OperatorWork]:
    """The works with every chain of operators that torch.compile fuses as one; the optimizer stays as it is."""
    running = (work for work in works if work.kind != "none")
    for (phase, is_fused), chain in groupby(running, lambda work: (work.phase, work.kind in _FUSED)):
        if is_fused and phase != "update":
            yield _as_one([*chain])
        else:
            yield from map(_padded, chain)


def _padded(work: OperatorWork) -> OperatorWork:
    """A product as the compiler calls it: its rows are padded to whole loads of tensor cores."""
    if work.kind != "product" or work.sizes is None:
        return work
    batch, m, n, k = work.sizes
    return replace(work, sizes=(batch, m, -(-n // 8) * 8, -(-k // 8) * 8))


def _as_one(chain: list[OperatorWork]) -> OperatorWork:
    largest = max(chain, key=lambda work: work.num_bytes)
    rest = sum(work.num_bytes for work in chain) - largest.num_bytes
    read_bytes = largest.read_bytes + round(_KEPT_SHARE * rest)
    return replace(largest, operator="fused", kind="elementwise", read_bytes=read_bytes, is_strided=False)
