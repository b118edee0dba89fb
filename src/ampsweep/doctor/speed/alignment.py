"""Sizes of matrices that a device's fast units do not take whole, and what padding them would save."""

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from ampsweep.doctor.speed.device_rates import random_values
from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.timed_calls import total_ms
from ampsweep.doctor.spot import spots

_MULTIPLE: Final = 8
"""Elements of half precision in 16 bytes, which tensor cores take at once (NVIDIA, "Train With Mixed Precision")."""
_MULTIPLE_OF_LARGE: Final = 64
_LARGE: Final = 1024
"""A size from which padding to a multiple of 64 adds little, as nanoGPT pads its vocabulary of 50257 to 50304."""
_PRODUCTS: Final = frozenset(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))
_MIN_CALL_PCT: Final = 1.0
_MIN_COST_PCT: Final = 5.0
_MIN_GAIN: Final = 0.1
"""Share of its time that a product must save."""


class UnalignedSizes(SpeedFinding):
    template = "Matrices{inside} have sizes that the device's fast units do not take whole"
    remedy = "round the sizes up"
    gain_ms: float
    own_ms: float
    sizes: list[int]
    padded_sizes: list[int]

    @property
    def evidence(self) -> list[str]:
        padding = ", ".join(f"{own} to {new}" for own, new in zip(self.sizes, self.padded_sizes, strict=True))
        gain = "the same products took {gain_ms} less than their {own_ms}, in a step of {step_ms}"
        return [self.told(f"padded ({padding}), {gain}")]


def unaligned_sizes(measured: MeasuredSteps) -> list[UnalignedSizes]:
    """Find matrix products in half precision that take less time with sizes rounded up to multiples of 8 or more."""
    wanted = [
        one
        for one in measured.step.of_phases("forward", "backward")
        if one.operator in _PRODUCTS
        and one.is_half
        and unaligned(one.sizes)
        and measured.share_pct(one.ms) >= _MIN_CALL_PCT
    ]
    saved = [(one, ms) for one, ms in measured.gains_ms(wanted, padded) if ms >= _MIN_GAIN * one.ms]
    findings = []
    for spot in spots(saved):
        if measured.share_pct(spot.cost) >= _MIN_COST_PCT:
            sizes = unaligned([size for one in spot.calls for size in one.sizes])
            keys = [
                key for key, value in measured.patient.config.model.items() if type(value) is int and value in sizes
            ]
            finding = measured.finding(
                UnalignedSizes,
                spot,
                [f"model.{key}={rounded_up(measured.patient.config.model[key])}" for key in keys],
                gain_ms=spot.cost,
                own_ms=total_ms(spot.calls),
                sizes=sizes,
                padded_sizes=[*map(rounded_up, sizes)],
            )
            findings.append(finding)
    return findings


def unaligned(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """The last two sizes of matrices that are no multiple of 8, in ascending order."""
    return sorted({size for one in sizes if len(one) >= 2 for size in one[-2:] if size % _MULTIPLE})


def rounded_up(size: int) -> int:
    """The next multiple of 8, or of 64 if the size is large and no multiple of 8."""
    multiple = _MULTIPLE if size < _LARGE or not size % _MULTIPLE else _MULTIPLE_OF_LARGE
    return -(-size // multiple) * multiple


def padded(tensor: Tensor) -> Tensor:
    """A matrix or bias of the size that padding gives it, in the same layout, with other values."""
    kept = max(tensor.dim() - 2, 0)
    sizes = [*tensor.shape[:kept], *map(rounded_up, tensor.shape[kept:])]
    is_transposed = tensor.dim() >= 2 and tensor.stride(-2) == 1 and tensor.stride(-1) != 1
    if is_transposed:
        sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
    values = random_values(sizes, tensor.dtype, tensor.device)
    return values.transpose(-1, -2) if is_transposed else values
