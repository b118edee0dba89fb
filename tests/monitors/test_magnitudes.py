"""Magnitudes are counted by exponent exactly as a plain count of all elements would have it."""

import math
import sys

import numpy as np
import pytest
import torch

from ampsweep.monitors.magnitudes import NUM_SELECTED, MagnitudeTable, counted, flat, selected, taken

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def many(dtype, num=3000):
    """Values over the whole range of a dtype, with its subnormals, zeros of both signs, infinities and NaN."""
    torch.manual_seed(0)
    info = torch.finfo(dtype)
    lowest, highest = math.frexp(info.smallest_normal * info.eps)[1] - 1, math.frexp(info.max)[1] - 1
    exponents = torch.randint(lowest, highest, (num,))
    values = torch.ldexp((1 + torch.rand(num, dtype=torch.float64)) * (1 - 2 * (torch.rand(num) < 0.5)), exponents)
    values = values.to(dtype)
    smallest = info.smallest_normal * info.eps
    values[:7] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, smallest, info.max], dtype=torch.float64)
    return values


def by_exponent(values):
    """Count finite elements by exponent, one by one, without those below float64's normal numbers."""
    counts = {}
    for value in values.double().flatten().tolist():
        if math.isfinite(value) and abs(value) >= sys.float_info.min:
            exponent = math.frexp(value)[1] - 1
            counts[exponent] = counts.get(exponent, 0) + 1
    return counts


def counts_of(magnitudes):
    return {magnitudes.first_exponent + index: count for index, count in enumerate(magnitudes.counts) if count}


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_a_plain_count(dtype):
    values = many(dtype)
    (one,) = counted([selected("weight", "layer", values)])
    found = one.magnitudes
    assert counts_of(found) == by_exponent(values)
    assert found.num_zeros == (values.double().abs() < sys.float_info.min).sum() >= 2
    assert found.num_nonfinite == (~values.isfinite()).sum() >= 3
    assert found.num_elements == 3000
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.max_abs == torch.finfo(dtype).max
    assert found.counts[0] > 0 < found.counts[-1], "nothing is stored but what is there"
    assert one.has_nonfinite


def test_counts_of_several_dtypes_at_once_do_not_mix():
    together = counted([selected("weight", str(dtype), many(dtype)) for dtype in DTYPES])
    for dtype, one in zip(DTYPES, together, strict=True):
        (alone,) = counted([selected("weight", str(dtype), many(dtype))])
        assert one == alone


@pytest.mark.parametrize("scale", [2.0**16, 3.0, 2.0**-20])
def test_the_scale_is_divided_out_of_gradients_alone(scale):
    values = many(torch.float32)
    gradient, weight = counted(
        [selected("gradient", "w", values, is_scaled=True), selected("weight", "w", values)], scale
    )
    assert counts_of(gradient.magnitudes) == by_exponent(values.double() / scale)
    assert counts_of(weight.magnitudes) == by_exponent(values)
    assert gradient.magnitudes.max_abs == pytest.approx(torch.finfo(torch.float32).max / scale)


def test_a_selection_is_even_and_leaves_out_no_column():
    tensor = torch.arange(64).repeat(4096, 1).float()
    columns, counts = np.unique(taken(flat(tensor)).numpy(), return_counts=True)
    assert len(columns) == 64
    assert counts.sum() == NUM_SELECTED
    assert counts.max() - counts.min() <= 2


def test_the_largest_magnitude_is_that_of_all_elements():
    tensor = torch.zeros(10**6)
    tensor[7] = -3.0
    (one,) = counted([selected("activation", "layer", tensor)])
    assert one.magnitudes.max_abs == 3.0
    assert one.magnitudes.num_elements == NUM_SELECTED
    assert not one.has_nonfinite


def test_a_single_nan_is_noticed_among_many():
    tensor = torch.ones(10**6)
    tensor[7] = math.nan
    (one,) = counted([selected("gradient", "layer", tensor)])
    assert one.has_nonfinite
    assert one.magnitudes.max_abs == 1.0


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(4, 8, 5, 5).to(memory_format=torch.channels_last), torch.randn(9, 7).T, torch.randn(3)[::2]],
    ids=["channels last", "transposed", "with gaps"],
)
def test_elements_are_counted_in_whatever_order_they_lie(tensor):
    (one,) = counted([selected("weight", "layer", tensor)])
    assert counts_of(one.magnitudes) == by_exponent(tensor)


def test_dense_elements_are_not_copied_to_be_selected():
    tensor = torch.randn(4, 8, 5, 5).to(memory_format=torch.channels_last)
    assert flat(tensor).data_ptr() == tensor.data_ptr()


def test_an_empty_tensor_has_no_magnitudes():
    assert selected("activation", "layer", torch.empty(0, 3)) is None


def test_a_selection_keeps_the_values_of_its_moment():
    tensor = torch.ones(5)
    selection = selected("weight", "layer", tensor)
    tensor.zero_()
    assert counts_of(counted([selection])[0].magnitudes) == {0: 5}


def test_a_table_adds_up_calls_and_steps():
    table = MagnitudeTable()
    first = [selected("activation", "layer", torch.tensor(values)) for values in ([1.0, 2.0], [0.0, 64.0])]
    table.add(counted(first))
    table.add(counted([selected("activation", "layer", torch.tensor([0.25, math.inf]))]))
    (one,) = table.magnitudes()
    assert (one.num_steps, one.num_elements, one.num_zeros, one.num_nonfinite, one.max_abs) == (2, 6, 1, 1, 64.0)
    assert counts_of(one) == {-2: 1, 0: 1, 1: 1, 6: 1}


def test_a_table_goes_on_from_another():
    one, other, whole = MagnitudeTable(), MagnitudeTable(), MagnitudeTable()
    steps = [counted([selected("weight", "w", torch.randn(50))]) for _ in range(2)]
    one.add(steps[0])
    other.load(one.magnitudes())
    other.add(steps[1])
    for step in steps:
        whole.add(step)
    assert other.magnitudes() == whole.magnitudes()
