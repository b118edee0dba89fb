"""A model of torch's CUDA caching allocator: allocated and reserved bytes.

It follows c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of torch 2.13 with their defaults: no
expandable segments, no maximum split size. It takes the smallest free block that is large enough, and splits it if
enough remains. Before it fails, it returns segments that are entirely free.
"""

from bisect import bisect_left, insort
from typing import Final

from ampsweep.text import MIB

_ROUND: Final = 512
_SMALL: Final = MIB
_SMALL_SEGMENT: Final = 2 * MIB
_LARGE_SEGMENT: Final = 20 * MIB
_OWN_SEGMENT: Final = 10 * MIB
_ROUND_SEGMENT: Final = 2 * MIB


class DeviceFullError(Exception):
    """Raised by an allocation that would exceed the limit."""


class _Block:
    __slots__ = ("address", "after", "before", "is_free", "pool", "size")

    def __init__(self, address: int, size: int, pool: list[tuple[int, int]]) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.is_free = False


class CudaAllocatorModel:
    """The allocator's state and counters. Callers number their allocations as they like."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: upper bound of the bytes taken from the device."""
        self._limit = limit
        self._small: list[tuple[int, int]] = []
        self._large: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}  # free blocks by address; the pools list their (size, address) in order
        self.in_use: dict[int, _Block] = {}  # blocks by the number of their allocation
        self._next_address = 0
        self.allocated = self.max_allocated = 0  # as `torch.cuda.memory_allocated`
        self.reserved = self.max_reserved = 0  # as `torch.cuda.memory_reserved`

    def allocate(self, number: int, num_bytes: int) -> None:
        """Allocate at least `num_bytes`; DeviceFullError beyond the limit."""
        size = max(_ROUND, -(-num_bytes // _ROUND) * _ROUND)
        pool = self._small if size <= _SMALL else self._large
        place = bisect_left(pool, (size, -1))
        block = self._blocks.pop(pool.pop(place)[1]) if place < len(pool) else self._segment(size, pool)
        rest = block.size - size
        if rest >= _ROUND and (pool is self._small or rest > _SMALL):
            self._split(block, size)
        block.is_free = False
        self.in_use[number] = block
        self.allocated += block.size
        self.max_allocated = max(self.max_allocated, self.allocated)

    def free(self, number: int) -> None:
        block = self.in_use.pop(number)
        self.allocated -= block.size
        for adjacent in (block.before, block.after):
            if adjacent is not None and adjacent.is_free:
                self._unlist(adjacent)
                block = self._merged(block, adjacent)
        self._list(block)

    def _segment(self, size: int, pool: list[tuple[int, int]]) -> _Block:
        if size <= _SMALL:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
        if self._limit is not None and self.reserved + segment > self._limit:
            self._return_free_segments()
            if self.reserved + segment > self._limit:
                raise DeviceFullError
        block = _Block(self._next_address, segment, pool)
        self._next_address += segment
        self.reserved += segment
        self.max_reserved = max(self.max_reserved, self.reserved)
        return block

    def _return_free_segments(self) -> None:
        for block in [block for block in self._blocks.values() if block.before is None and block.after is None]:
            self._unlist(block)
            self.reserved -= block.size

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._list(rest)

    def _merged(self, first: _Block, second: _Block) -> _Block:
        low, high = (first, second) if first.address < second.address else (second, first)
        low.size += high.size
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low

    def _list(self, block: _Block) -> None:
        block.is_free = True
        self._blocks[block.address] = block
        insort(block.pool, (block.size, block.address))

    def _unlist(self, block: _Block) -> None:
        del self._blocks[block.address]
        del block.pool[bisect_left(block.pool, (block.size, block.address))]
