import json
import math

import numpy as np

from ampsweep.report.short_numbers import short_numbers


def test_whole_numbers_are_written_whole_and_gaps_as_null():
    values = np.array([1.0, 65536.0, -3.0, math.nan, math.inf, 0.0, 2.5])
    assert json.dumps(short_numbers(values)) == "[1, 65536, -3, null, null, 0, 2.5]"
    assert json.dumps(short_numbers(np.array([5.0, 10.0]))) == "[5, 10]"


def test_others_are_written_with_five_digits():
    random = np.random.default_rng(0)
    values = random.normal(size=5000) * 10.0 ** random.integers(-10, 5, size=5000)
    written = short_numbers(values)
    assert np.allclose(np.array(written, dtype=float), values, rtol=5.1e-5, atol=0)
    mantissas = [f"{abs(number):e}".partition("e")[0].rstrip("0") for number in written]
    assert max(map(len, mantissas)) == len("1.2345")
    assert max(len(repr(abs(number))) for number in written) <= len("0.00012345")


def test_extremes_neither_overflow_nor_vanish():
    values = np.array([1e-300, 1e300, 123456789.75, 1e-18])
    assert short_numbers(values) == [1e-300, 1e300, 123456790, 1e-18]
