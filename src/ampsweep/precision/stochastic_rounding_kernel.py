"""A Triton kernel for stochastic rounding of float32 to bfloat16 that makes its own random numbers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 1024
"""Elements of each of the four parts of a block: a call of Philox gives four numbers."""


@triton.jit(do_not_specialize=["begin", "end", "seed", "update", "stream"])  # type: ignore[untyped-decorator]
def _round(bits, begin, end, seed, update, stream, lanes: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    block = begin // (4 * lanes) + tl.program_id(0)
    lane = tl.arange(0, lanes)
    counter = block.to(tl.int64) * lanes + lane
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    none = low * 0
    numbers = tl.philox(seed, low, high, none + update.to(tl.uint32), none + stream.to(tl.uint32))
    for part in tl.static_range(4):
        at = block.to(tl.int64) * (4 * lanes) + part * lanes + lane
        own = (at >= begin) & (at < end)
        value = tl.load(bits + (at - begin), mask=own, other=0)
        noise = (numbers[part] & 0xFFFF).to(tl.int32)
        tl.store(bits + (at - begin), (value + noise) & -65536, mask=own)


def launch(values: Tensor, begin: int, seed: int, update: int, stream: int) -> None:
    """Round float32 values (1-D, dense) in place as `round_stochastically_` does.

    The noise of an element depends on seed, update and stream (each below 2**31) and its place alone, so the division
    of elements among calls does not matter; `begin` is the place of the first element.
    """
    end, size = begin + values.numel(), 4 * _LANES
    grid, bits = ((end - 1) // size - begin // size + 1,), values.view(torch.int32)
    with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]
        _round[grid](bits, begin, end, seed, update, stream, _LANES)
