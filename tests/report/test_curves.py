import json
import math

import numpy as np
import pytest

from ampsweep.report.histories import Curve, band, short_numbers


def curve(values, steps=None):
    values = np.array(values, dtype=float)
    return Curve(np.arange(1.0, len(values) + 1) if steps is None else np.array(steps, dtype=float), values)


def test_a_thinned_curve_keeps_the_extremes_at_their_own_steps():
    values = np.sin(np.arange(1000) / 50)
    values[[333, 777]] = [9.0, -9.0]
    thin = curve(values).thinned(60)
    assert len(thin) <= 60
    points = dict(zip(thin.steps.tolist(), thin.values.tolist(), strict=True))
    assert points[334.0] == 9.0
    assert points[778.0] == -9.0
    assert (np.diff(thin.steps) > 0).all()


def test_a_short_curve_is_left_as_it_is():
    whole = curve([1.0, 2.0])
    assert whole.thinned(2) is whole


def test_thinning_keeps_a_gap():
    values = np.ones(900)
    values[400:500] = math.nan
    thin = curve(values).thinned(30)
    assert np.isnan(thin.values).any()
    assert np.isfinite(thin.values).any()


def test_a_band_covers_the_steps_that_all_runs_logged():
    made = band([curve([1.0, 2.0, 4.0]), curve([3.0, math.nan, 8.0, 9.0])])
    assert made.steps.tolist() == [1.0, 3.0]
    assert (made.low.tolist(), made.mean.tolist(), made.high.tolist()) == ([1.0, 4.0], [2.0, 6.0], [3.0, 8.0])


@pytest.mark.parametrize("curves", [[], [curve([1.0, 2.0])], [curve([1.0, 2.0]), curve([1.0, 2.0], steps=[7, 8])]])
def test_one_curve_or_curves_without_common_steps_make_no_band(curves):
    assert band(curves) is None


def test_a_thinned_band_still_holds_every_value():
    values = np.random.default_rng(0).normal(size=(2, 1000))
    made = band([curve(values[0]), curve(values[1])])
    thin = made.thinned(40)
    assert len(thin.steps) == 40
    assert thin.low.min() == values.min()
    assert thin.high.max() == values.max()
    assert (thin.low <= thin.mean).all()
    assert (thin.mean <= thin.high).all()


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
