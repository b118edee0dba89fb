"""Stochastic rounding of float32 to bfloat16."""

from collections.abc import Iterator

import torch
from torch import Tensor

_BEHIND = 0xFFFF
"""The bits of a float32 that bfloat16 lacks."""


class RoundingNoise:
    """Random 16-bit numbers, the same for the same seed and number of the update.

    Args:
        seed: that of the run.
        update: the number of the update within the run, so that no state has to be saved.
    """

    def __init__(self, device: torch.device, seed: int, update: int) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed((seed * 0x9E3779B1 + update) % 2**32)  # the CPU's takes 32 bits

    def numbers(self, num: int) -> Iterator[Tensor]:
        """Draw tensors of `num` uniform numbers (int16), one after the other independent at each place.

        They are views of one drawing, each a place further on: to draw is what takes the time on a CPU.
        """
        drawn = torch.empty((num + 7) // 4 + 1, dtype=torch.int64, device=self._generator.device)
        drawn.random_(-(2**63), None, generator=self._generator)
        numbers = drawn.view(torch.int16)
        for begin in range(numbers.numel() - num + 1):
            yield numbers[begin : begin + num]


def round_stochastically_(values: Tensor, noise: Tensor) -> None:
    """Round float32 values in place to numbers that bfloat16 has, to the nearer neighbour the more probably.

    A value at the share f of the way from the neighbour nearer to zero to the other becomes the other with probability
    f, so that the mean of the result is the value (M. Croci et al., Stochastic rounding: implementation, error
    analysis and applications, 2022, section 2). What bfloat16 has already, infinities among them, stays as it is.

    Args:
        values: float32, dense, 1-D.
        noise: int16 of the same size, uniform.
    """
    bits = values.view(torch.int32)
    bits.add_(noise).add_(2**15).bitwise_and_(~_BEHIND)  # noise from -2**15 to 2**15 - 1
