"""Stochastic rounding of float32 to bfloat16."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count

import torch
from torch import Tensor, nn


class RoundingNoise:
    """Random 16-bit numbers determined by the run's seed and the number of the update."""

    def __init__(self, device: torch.device, seed: int, update: int) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed((seed * 0x9E3779B1 + update) % 2**32)  # the CPU's takes 32 bits

    def numbers(self, num: int) -> Iterator[Tensor]:
        """Yield tensors of `num` uniform numbers (int16) that are independent of each other element by element.

        They are overlapping views of a single drawing, because drawing is the slow part on a CPU.
        """
        drawn = torch.empty((num + 7) // 4 + 1, dtype=torch.int64, device=self._generator.device)
        drawn.random_(-(2**63), None, generator=self._generator)
        numbers = drawn.view(torch.int16)
        for begin in range(numbers.numel() - num + 1):
            yield numbers[begin : begin + num]

    def rounds(self, num: int, place: int) -> Iterator[Callable[[Tensor], None]]:
        """Yield functions that round up to `num` values in place; `place` is the index of the first among all."""
        for numbers in self.numbers(num):
            yield partial(round_stochastically_, noise=numbers)


class KernelNoise:
    """Noise made by the rounding kernel on a CUDA device from seed, update and an element's place."""

    def __init__(self, seed: int, update: int) -> None:
        self._seed, self._update = seed % 2**31, update % 2**31

    def rounds(self, num: int, place: int) -> Iterator[Callable[[Tensor], None]]:
        for stream in count():
            yield partial(self._round, place, stream)

    def _round(self, place: int, stream: int, values: Tensor) -> None:
        if _is_real(values):
            from ampsweep.precision.stochastic_rounding_kernel import launch

            launch(values, place, self._seed, self._update, stream)


def noise_for(parameter: Tensor, device: torch.device) -> Callable[[int, int], RoundingNoise | KernelNoise]:
    """A function of seed and update that makes the noise for a device; in a prediction `parameter` is elsewhere."""
    if device.type == "cuda" and (not _is_real(parameter) or _runs(parameter.device)):
        return KernelNoise
    return partial(RoundingNoise, parameter.device)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_cuda and type(tensor) in (Tensor, nn.Parameter)


@cache
def _runs(device: torch.device) -> bool:
    try:
        from ampsweep.precision.stochastic_rounding_kernel import launch

        launch(torch.ones(1, device=device), 0, 0, 0, 0)
    except Exception as error:  # noqa: BLE001  Triton may be missing, or its compiler, which raises anything
        warnings.warn(f"stochastic rounding runs operator by operator, which is slower: {error}", stacklevel=2)
        return False
    return True


def round_stochastically_(values: Tensor, noise: Tensor) -> None:
    """Round float32 values in place to one of their two bfloat16 neighbours, at random.

    A value a fraction f of the way from the neighbour nearer to zero to the other becomes the other with probability f,
    so that the mean of the result is the value (M. Croci et al., Stochastic rounding: implementation, error analysis
    and applications, 2022, section 2). bfloat16 numbers and infinities stay as they are.

    Args:
        values: float32, dense, 1-D.
        noise: int16, uniform, at least as many.
    """
    bits = values.view(torch.int32)
    bits.add_(noise[: bits.numel()]).add_(2**15).bitwise_and_(-(2**16))  # noise from -2**15 to 2**15 - 1


def joined(values: Sequence[Tensor]) -> Tensor:
    """Concatenate 1-D tensors, without a copy if they are adjacent in memory."""
    first, last, size = values[0], values[-1], sum(value.numel() for value in values)
    if last.storage_offset() + last.numel() - first.storage_offset() == size:
        return first.as_strided((size,), (1,))
    return torch.cat([*values])
