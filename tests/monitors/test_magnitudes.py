"""Magnitudes are counted by exponent exactly as a plain count of all elements."""

import math
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from ampsweep.monitors.magnitudes import NUM_SELECTED, MagnitudeTable, counted, flat, selected, taken

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def many(dtype, num=3000):
    """Values over the whole range of a dtype, with its subnormals, zeros of both signs, infinities and NaN."""
    torch.manual_seed(0)
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    exponents = torch.randint(math.frexp(smallest)[1] - 1, math.frexp(info.max)[1] - 1, (num,))
    signs = 1 - 2 * (torch.rand(num) < 0.5)
    values = torch.ldexp((1 + torch.rand(num, dtype=torch.float64)) * signs, exponents).to(dtype)
    values[:7] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, smallest, info.max], dtype=torch.float64)
    return values


def by_exponent(values):
    """Count finite elements by exponent one by one, without those below float64's normal numbers."""
    numbers = values.double().flatten().tolist()
    return Counter(math.frexp(n)[1] - 1 for n in numbers if math.isfinite(n) and abs(n) >= sys.float_info.min)


def counts_of(magnitudes):
    return {magnitudes.first_exponent + index: count for index, count in enumerate(magnitudes.counts) if count}


def count_one(kind, tensor):
    (found,) = counted([selected(kind, "layer", tensor)])
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_a_plain_count(dtype):
    values = many(dtype)
    alone = count_one("weight", values)
    found = alone.magnitudes
    assert counts_of(found) == by_exponent(values)
    assert found.num_zeros == (values.double().abs() < sys.float_info.min).sum() >= 2
    assert found.num_nonfinite == (~values.isfinite()).sum() >= 3
    assert (found.num_elements, found.dtype) == (3000, str(dtype).removeprefix("torch."))
    assert found.max_abs == torch.finfo(dtype).max
    assert found.counts[0] > 0 < found.counts[-1], "no empty bins are stored at either end"
    together = counted([selected("weight", "layer", many(each)) for each in DTYPES])
    assert together[DTYPES.index(dtype)] == alone, "several dtypes at once do not mix"


@pytest.mark.parametrize("scale", [2.0**16, 3.0, 2.0**-20])
def test_the_scale_is_divided_out_of_gradients_alone(scale):
    values = many(torch.float32)
    selections = [selected("gradient", "w", values, is_scaled=True), selected("weight", "w", values)]
    gradient, weight = (each.magnitudes for each in counted(selections, scale))
    assert counts_of(gradient) == by_exponent(values.double() / scale)
    assert counts_of(weight) == by_exponent(values)
    assert gradient.max_abs == pytest.approx(torch.finfo(torch.float32).max / scale)


@pytest.mark.parametrize(("value", "max_abs"), [(-3.0, 3.0), (math.nan, 1.0)])
def test_a_selection_is_even_and_its_extremes_are_those_of_all(value, max_abs):
    columns, counts = np.unique(taken(flat(torch.arange(64).repeat(4096, 1).float())).numpy(), return_counts=True)
    assert (len(columns), counts.sum()) == (64, NUM_SELECTED)
    assert counts.max() - counts.min() <= 2
    tensor = torch.ones(10**6)
    tensor[7] = value
    found = count_one("activation", tensor)
    assert (found.magnitudes.max_abs, found.magnitudes.num_elements) == (max_abs, NUM_SELECTED)


def test_elements_are_counted_in_any_layout():
    channels_last = torch.randn(4, 8, 5, 5).to(memory_format=torch.channels_last)
    assert flat(channels_last).data_ptr() == channels_last.data_ptr(), "dense elements are not copied"
    for tensor in (channels_last, torch.randn(9, 7).T, torch.randn(3)[::2]):
        assert counts_of(count_one("weight", tensor).magnitudes) == by_exponent(tensor)
    assert selected("activation", "layer", torch.empty(0, 3)) is None
    tensor = torch.ones(5)
    selection = selected("weight", "layer", tensor)
    tensor.zero_()
    assert counts_of(counted([selection])[0].magnitudes) == {0: 5}, "as they were when the selection was taken"


def test_a_table_adds_up_calls_and_steps():
    table, resumed = MagnitudeTable(), MagnitudeTable()
    table.add([count_one("activation", torch.tensor(values)) for values in ([1.0, 2.0], [0.0, 64.0])])
    table.add([count_one("activation", torch.tensor([0.25, math.inf]))])
    (row,) = table.magnitudes()
    assert (row.num_steps, row.num_elements, row.num_zeros, row.num_nonfinite, row.max_abs) == (2, 6, 1, 1, 64.0)
    assert counts_of(row) == {-2: 1, 0: 1, 1: 1, 6: 1}
    resumed.load(table.magnitudes())
    for each in (table, resumed):
        each.add([count_one("activation", torch.arange(50.0))])
    assert resumed.magnitudes() == table.magnitudes()
