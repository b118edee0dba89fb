"""Sizes of matrices that a device's fast units do not take whole, and what padding them would save."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from ampsweep.doctor.speed.device_rates import random_values
from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding, spots
from ampsweep.doctor.speed.timed_calls import TimedCall
from ampsweep.doctor.speed.trials import Arguments, gains

_MULTIPLE: Final = 8
"""Elements of half precision in 16 bytes, which tensor cores take at once (NVIDIA, "Train With Mixed Precision")."""
_MULTIPLE_OF_LARGE: Final = 64
_LARGE: Final = 1024
"""A size from which padding to a multiple of 64 adds little, as nanoGPT pads its vocabulary of 50257 to 50304."""
_PRODUCTS: Final = frozenset(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))
_MIN_CALL_PCT: Final = 1.0
_MIN_COST_PCT: Final = 5.0
_MIN_GAIN: Final = 0.1
_TRIAL_S: Final = 1.5


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
        if one.call.operator in _PRODUCTS
        and one.is_half
        and unaligned(one.sizes)
        and measured.share_pct(one.ms) >= _MIN_CALL_PCT
    ]
    saved = gains(measured, wanted, padded, seconds=_TRIAL_S, least=_MIN_GAIN)
    return [
        measured.finding(
            UnalignedSizes,
            spot,
            _overrides(measured.patient.config.model, _sizes(spot.calls)),
            gain_ms=spot.ms,
            own_ms=sum(one.ms for one in spot.calls),
            sizes=_sizes(spot.calls),
            padded_sizes=[rounded_up(size) for size in _sizes(spot.calls)],
        )
        for spot in spots(saved)
        if measured.share_pct(spot.ms) >= _MIN_COST_PCT
    ]


def unaligned(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """The last two sizes of matrices that are no multiple of 8, in ascending order."""
    return sorted({size for one in sizes if len(one) >= 2 for size in one[-2:] if size % _MULTIPLE})


def rounded_up(size: int) -> int:
    """The next multiple of 8; of a large size that is none the next one of 64."""
    multiple = _MULTIPLE if size < _LARGE or not size % _MULTIPLE else _MULTIPLE_OF_LARGE
    return -(-size // multiple) * multiple


def padded(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """Matrices of the sizes that those of a product get by padding, in the same layout; a bias gets its length."""
    return tuple(_padded(one) if isinstance(one, Tensor) else one for one in args), kwargs


def _padded(tensor: Tensor) -> Tensor:
    if tensor.dim() == 0:
        return tensor
    kept = max(tensor.dim() - 2, 0)
    sizes = [*tensor.shape[:kept], *(rounded_up(size) for size in tensor.shape[kept:])]
    if tensor.dim() >= 2 and tensor.stride(-2) == 1 and tensor.stride(-1) != 1:  # a transposed view stays one
        sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
        return random_values(sizes, tensor.dtype, tensor.device).transpose(-1, -2)
    return random_values(sizes, tensor.dtype, tensor.device)


def _sizes(calls: Sequence[TimedCall]) -> list[int]:
    return unaligned([size for one in calls for size in one.sizes])


def _overrides(model: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """The keys of the model's config that hold these very sizes, with the rounded ones."""
    return [f"model.{key}={rounded_up(value)}" for key, value in model.items() if type(value) is int and value in sizes]
