"""The estimate of what float8 can gain agrees with what torchao publishes."""

import pytest

from ampsweep.analysis.float8_gain import float8_gain
from ampsweep.record.parts import LinearShape


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_examples_of_torchaos_page_are_told_apart(recipe):
    """Its README measures a speedup of 0.80 for the small layer and 1.39 for the large one, on an H100."""
    small = float8_gain([LinearShape(1024, 2048, 1024)], recipe)
    large = float8_gain([LinearShape(4096, 8192, 16384)], recipe)
    assert not small.can_gain
    assert small.speedup < 0.8
    assert large.can_gain
    assert 1.39 < large.speedup < 2


def test_a_large_layer_costs_its_arithmetic():
    gain = float8_gain([LinearShape(65536, 16384, 16384)], "tensorwise")
    assert gain.bf16_us == pytest.approx(3 * 2 * 65536 * 16384**2 / 989.4e12 / 0.78 * 1e6)
    assert gain.speedup == pytest.approx(2, rel=0.1)


def test_a_tiny_layer_costs_the_launches_of_its_kernels():
    tensorwise, rowwise = (float8_gain([LinearShape(16, 16, 16)], recipe) for recipe in ("tensorwise", "rowwise"))
    assert tensorwise.bf16_us == rowwise.bf16_us == pytest.approx(3 * 2)
    assert (tensorwise.float8_us, rowwise.float8_us) == pytest.approx(((3 + 10) * 2, (3 + 7) * 2))


def test_calls_of_a_layer_are_added_up():
    once, twice = LinearShape(4096, 8192, 8192), LinearShape(8192, 8192, 8192, calls=2)
    assert float8_gain([twice], "rowwise").float8_us == pytest.approx(2 * float8_gain([once], "rowwise").float8_us)


def test_layers_that_were_not_called_are_left_out():
    assert float8_gain([LinearShape(0, 64, 64)], "rowwise") is None
