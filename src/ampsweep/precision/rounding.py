"""Stochastic rounding of float32 to bfloat16."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count

import torch
from torch import Tensor, nn

_BEHIND = 0xFFFF
"""The bits of a float32 that bfloat16 lacks."""


class RoundingNoise:
    """Random 16-bit numbers, a function of the run's seed and the number of the update."""

    def __init__(self, device: torch.device, seed: int, update: int) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed((seed * 0x9E3779B1 + update) % 2**32)  # the CPU's takes 32 bits

    def numbers(self, num: int) -> Iterator[Tensor]:
        """Draw tensors of `num` uniform numbers (int16), one after the other independent at each place.

        They are views of one drawing, each a place further on, as drawing takes the time on a CPU.
        """
        drawn = torch.empty((num + 7) // 4 + 1, dtype=torch.int64, device=self._generator.device)
        drawn.random_(-(2**63), None, generator=self._generator)
        numbers = drawn.view(torch.int16)
        for begin in range(numbers.numel() - num + 1):
            yield numbers[begin : begin + num]

    def rounds(self, num: int, place: int) -> Iterator[Callable[[Tensor], None]]:
        """Yield functions that round up to `num` values in place; `place` is the first one's among all parameters."""
        for numbers in self.numbers(num):
            yield partial(round_stochastically_, noise=numbers)


class KernelNoise:
    """The same by one kernel on a CUDA device: an element's number follows from seed, update and its place."""

    def __init__(self, seed: int, update: int) -> None:
        self._seed, self._update = seed % 2**31, update % 2**31

    def rounds(self, num: int, place: int) -> Iterator[Callable[[Tensor], None]]:
        """See `RoundingNoise.rounds`."""
        for stream in count():
            yield partial(self._round, place, stream)

    def _round(self, place: int, stream: int, values: Tensor) -> None:
        if _is_real(values):
            from ampsweep.precision.rounding_kernel import launch

            launch(values, place, self._seed, self._update, stream)


def noise_for(parameter: Tensor, device: torch.device) -> Callable[[int, int], RoundingNoise | KernelNoise]:
    """The noise of updates on a device, for which `parameter` stands in a prediction, by seed and update."""
    if device.type == "cuda" and (not _is_real(parameter) or _runs(parameter.device)):
        return KernelNoise
    return partial(RoundingNoise, parameter.device)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_cuda and type(tensor) in (Tensor, nn.Parameter)


@cache
def _runs(device: torch.device) -> bool:
    try:
        from ampsweep.precision.rounding_kernel import launch

        launch(torch.ones(1, device=device), 0, 0, 0, 0)
    except Exception as error:  # noqa: BLE001  Triton may be missing, or its compiler, which raises anything
        warnings.warn(f"stochastic rounding runs operator by operator, which is slower: {error}", stacklevel=2)
        return False
    return True


def round_stochastically_(values: Tensor, noise: Tensor) -> None:
    """Round float32 values in place to numbers that bfloat16 has, to the nearer neighbour the more probably.

    A value at the share f of the way from the neighbour nearer to zero to the other becomes the other with probability
    f, so that the mean of the result is the value (M. Croci et al., Stochastic rounding: implementation, error
    analysis and applications, 2022, section 2). What bfloat16 has already, infinities among them, stays as it is.

    Args:
        values: float32, dense, 1-D.
        noise: int16 of the same size at least, uniform.
    """
    bits = values.view(torch.int32)
    bits.add_(noise[: bits.numel()]).add_(2**15).bitwise_and_(~_BEHIND)  # noise from -2**15 to 2**15 - 1


def joined(values: Sequence[Tensor]) -> Tensor:
    """The values of 1-D tensors one after the other: without a copy where they lie so in memory, as in a scratch."""
    first, last, size = values[0], values[-1], sum(value.numel() for value in values)
    if last.storage_offset() + last.numel() - first.storage_offset() == size:
        return first.as_strided((size,), (1,))
    return torch.cat([*values])
