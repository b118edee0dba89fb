"""Stochastic rounding of float32 to bfloat16."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor, nn

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

    def of_round(self, num: int) -> "RoundAll":
        """The rounding of tensors with `num` elements in all at most, each call by other numbers."""
        numbers = self.numbers(num)

        def rounded(values: Sequence[Tensor], places: Sequence[int]) -> Sequence[Tensor]:
            block = values[0] if len(values) == 1 else torch.cat([*values])
            round_stochastically_(block, next(numbers)[: block.numel()])
            return torch.split(block, [value.numel() for value in values])

        return rounded


class KernelNoise:
    """The same from a kernel on a CUDA device, in place and without memory for the numbers.

    An element's number follows from seed, update and the element's place, however elements are divided into rounds.
    """

    def __init__(self, seed: int, update: int) -> None:
        self._seed, self._update = seed % 2**31, update % 2**31

    def of_round(self, num: int) -> "RoundAll":
        """See `RoundingNoise.of_round`."""
        streams = iter(range(2**31))

        def rounded(values: Sequence[Tensor], places: Sequence[int]) -> Sequence[Tensor]:
            stream = next(streams)
            for block, place in _joined(values, places):
                if _is_real(block):
                    from ampsweep.precision.rounding_kernel import launch

                    launch(block, place, self._seed, self._update, stream)
            return values

        return rounded


RoundAll = Callable[[Sequence[Tensor], Sequence[int]], Sequence[Tensor]]
"""Rounds float32 values (1-D, dense), given the place of each one's first element among all; may do so in place."""


def has_kernel(parameter: Tensor, device: torch.device) -> bool:
    """Tell whether the kernel rounds the parameters of a device, for which `parameter` may stand in a prediction."""
    return device.type == "cuda" and (not _is_real(parameter) or _runs(parameter.device))


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_cuda and type(tensor) in (Tensor, nn.Parameter)


@cache
def _runs(device: torch.device) -> bool:
    """Tell whether the kernel runs on a CUDA device; a warning says why not."""
    try:
        from ampsweep.precision.rounding_kernel import launch

        launch(torch.ones(1, device=device), 0, 0, 0, 0)
    except Exception as error:  # noqa: BLE001  Triton may be missing, or its compiler, which raises anything
        warnings.warn(f"stochastic rounding runs operator by operator, which is slower: {error}", stacklevel=2)
        return False
    return True


def _joined(values: Sequence[Tensor], places: Sequence[int]) -> Iterator[tuple[Tensor, int]]:
    """Tensors that lie one behind the other, in memory as among all elements, as one."""
    first = size = 0
    for number, value in enumerate(values):
        begun = values[first]
        size += value.numel()
        after = values[number + 1] if number + 1 < len(values) else None
        if (
            after is None
            or places[number + 1] != places[first] + size
            or after.storage_offset() != begun.storage_offset() + size
            or after.untyped_storage()._cdata != begun.untyped_storage()._cdata
        ):
            yield begun.as_strided((size,), (1,)), places[first]
            first, size = number + 1, 0


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
