"""Stochastic rounding of float32 to bfloat16: unbiased, reproducible, and the same by kernel and operators."""

import os

import pytest
import torch

from ampsweep.precision.stochastic_rounding import RoundingNoise, round_stochastically_

CPU = torch.device("cpu")


def noise_of(seed, update, number):
    return next(iter(RoundingNoise(CPU, seed, update).numbers(number)))


@pytest.mark.parametrize("base", [1.0, -1.0, 3e-38, 1e30])
def test_the_mean_is_the_value(base):
    number = 200_000
    below = torch.tensor(base).bfloat16().float()
    bits = below.view(torch.int32)
    above = (bits + 2**16).view(torch.float32)
    for share in (0.0, 0.01, 0.25, 0.5, 0.9):
        rounded = (bits + round(share * 2**16)).view(torch.float32).repeat(number)
        round_stochastically_(rounded, noise_of(3, 1, number))
        assert {*rounded.unique().tolist()} <= {float(below), float(above)}
        ups = float((rounded == above).double().mean())
        limit = 5 * (share * (1 - share) / number) ** 0.5 + 1e-12
        assert ups == pytest.approx(round(share * 2**16) / 2**16, abs=limit)


def test_bfloat16_numbers_stay_as_they_are():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    every = every[~every.isnan()]
    rounded = every.clone()
    round_stochastically_(rounded, noise_of(0, 1, every.numel()))
    assert torch.equal(rounded, every)
    assert rounded.isinf().sum() == 2


def test_noise_is_uniform_independent_and_reproducible():
    number = 100_000
    drawn = RoundingNoise(CPU, 7, 1).numbers(number)
    first, second, third = (next(drawn).clone() for _ in range(3))
    assert torch.equal(first, noise_of(7, 1, number))
    for other in (second, third, noise_of(7, 2, number), noise_of(8, 1, number)):
        assert abs(float(torch.corrcoef(torch.stack([first, other]).double())[0, 1])) < 5 / number**0.5
    for shift in (0, 8):
        counts = torch.bincount(((first.int() >> shift) & 0xFF).long(), minlength=256).double()
        expected = number / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * (2 * 255) ** 0.5  # chi squared


@pytest.mark.gpu
def test_the_kernel_rounds_as_the_operators_do():
    """On a GPU, or with TRITON_INTERPRET=1 on a CPU."""
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("needs a CUDA device, or Triton and TRITON_INTERPRET=1")
    from ampsweep.precision.stochastic_rounding_kernel import launch

    device, number, begin = "cuda" if torch.cuda.is_available() else "cpu", 10_001, 2**33 - 5000
    least = torch.full((number,), 2**16, device=device)  # bits behind 1.0 from which on a value is rounded up
    for step in (2**power for power in range(15, -1, -1)):
        given = (least - step + (0x3F80 << 16)).int().view(torch.float32)
        launch(given, begin, 7, 3, 1)
        least -= step * (given > 1)
    rounded = (values := torch.randn(number, device=device)).clone()
    for first, last in ((0, 333), (333, number)):
        launch(rounded[first:last], begin + first, 7, 3, 1)
    round_stochastically_(values, (2**15 - least).to(torch.int16))
    assert torch.equal(rounded, values)
    assert abs(least.float().mean() - 2**15) < 5 * 2**16 / (12 * number) ** 0.5
