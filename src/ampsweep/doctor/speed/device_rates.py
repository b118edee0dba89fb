"""Arithmetic and memory rates of a device: the two roofs of a roofline."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

import torch
from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.speed.step_times import timed_ms
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep, by_origin, total_ms
from ampsweep.monitors.step_clock import Moments

HALF: Final = ("bfloat16", "float16")
_SIZES: Final = {"cpu": (192, 512, 1024)}
"""Edges of square matrices."""
_SIZES_OF_ACCELERATORS: Final = (1024, 4096)
_MAX_PRODUCT_S: Final = 0.1
"""A larger product is left out if it would take longer, by the rate of the smaller one."""
_ROUNDS: Final = 8
_COPIED_BYTES: Final = {"cpu": 2**26}
_COPIED_BYTES_OF_ACCELERATORS: Final = 2**29


@dataclass(frozen=True)
class DeviceRates:
    """Measured rates of a device."""

    flops_per_s: dict[str, float]
    """Rate of matrix products by the dtype of their operands."""
    bytes_per_s: float
    """Between processor and memory, reads and writes together."""

    def product_ratio(self, dtype: str) -> float:
        """The rate of matrix products in a dtype over that in float32."""
        return self.flops_per_s[dtype] / self.flops_per_s["float32"]

    def ratio_in(self, dtype: str, one: TimedCall) -> float:
        """The time of a call in float32 over that in half precision, by the roofline.

        Each takes the time of its arithmetic or that of its bytes, whichever is longer (S. Williams et al., "Roofline:
        an insightful visual performance model for multicore architectures", 2009); half precision moves half the bytes.
        """
        bytes_s = one.num_bytes / self.bytes_per_s
        if not one.flops:
            return 2.0
        single_s = max(one.flops / self.flops_per_s["float32"], bytes_s)
        half_s = max(one.flops / self.flops_per_s[dtype], bytes_s / 2)
        return single_s / half_s


def device_rates(device: torch.device, moments: Moments, *, seconds: float) -> DeviceRates:
    """Measure the rates of a device."""
    return DeviceRates(_products_per_s(device, moments, seconds=seconds), _copied_per_s(device, moments))


def _products_per_s(device: torch.device, moments: Moments, *, seconds: float) -> dict[str, float]:
    """Operations per second of products of square matrices, of each dtype at its fastest size."""
    best: dict[str, float] = {}
    end_s = monotonic() + seconds
    for size in _SIZES.get(device.type, _SIZES_OF_ACCELERATORS):
        quick = {one for one in ("float32", *HALF) if one not in best or 2 * size**3 / best[one] <= _MAX_PRODUCT_S}
        operands = {one: random_values((size, size), getattr(torch, one), device) for one in quick}
        for number in range(1 + _ROUNDS):
            for dtype, operand in operands.items():
                per_s = 1e3 * 2 * size**3 / timed_ms(partial(torch.mm, operand, operand), moments)
                best[dtype] = max(per_s, best.get(dtype, 0.0))
            if number and monotonic() > end_s:
                break
    return best


def _copied_per_s(device: torch.device, moments: Moments) -> float:
    """Bytes that a copy reads and writes in a second."""
    num_bytes = _COPIED_BYTES.get(device.type, _COPIED_BYTES_OF_ACCELERATORS)
    source = random_values((num_bytes // 4,), torch.float32, device)
    target = torch.empty_like(source)
    ms = min(timed_ms(lambda: target.copy_(source), moments) for _ in range(6))
    return 1e3 * 2 * num_bytes / ms


def random_values(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal numbers, the same each time: with equal ones a GPU draws less power, and its clocks stay higher."""
    drawn = torch.empty(*sizes, dtype=dtype, device=device)
    return drawn.normal_(generator=torch.Generator(device).manual_seed(0))


def speedup_bound(
    baseline: TimedStep, own: TimedStep, step_ms: float, precision: PrecisionConfig, rates: DeviceRates
) -> float:
    """The step's time in float32 over the least time that it can take in this precision.

    Every floating-point operator of forward and backward takes the time of the roofline in half precision, or the one
    that was measured, if that is less. The optimizer under autocast, and the host's time between operators, stay.

    Args:
        own: the same step in this precision.
        step_ms: time of the step in float32, which operators need not fill.
    """
    step_ms = max(step_ms, baseline.operators_ms)
    seen = by_origin(own.calls)
    gained_ms = 0.0
    for origin, calls in by_origin(baseline.calls).items():
        least_ms = sum(
            one.ms / max(rates.ratio_in(precision.dtype, one), 1.0) if _could_be_half(one, precision) else one.ms
            for one in calls
        )
        if len(seen.get(origin, [])) == len(calls):
            least_ms = min(least_ms, total_ms(seen[origin]))
        gained_ms += total_ms(calls) - least_ms
    return step_ms / (step_ms - min(gained_ms, baseline.operators_ms, 0.99 * step_ms))


def _could_be_half(one: TimedCall, precision: PrecisionConfig) -> bool:
    if one.phase == "update" and precision.parameters not in HALF:
        return False
    return any(dtype.is_floating_point for dtype in (*one.inputs, *one.outputs))
