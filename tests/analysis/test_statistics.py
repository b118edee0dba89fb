import math
import random
from operator import neg

import pytest

from ampsweep.analysis.statistics import Estimate, mean_difference, mean_ratio, spread

T_2 = 4.302652729911275
"""Two-sided 95 % quantile of Student's t with 2 degrees of freedom, from printed tables (4.303) to double precision."""


def test_the_interval_of_a_mean_difference_is_that_by_hand():
    # mean 2, sample standard deviation 1, standard error 1 / sqrt(3)
    estimate = mean_difference([1.0, 2.0, 3.0])
    assert estimate.value == pytest.approx(2.0)
    assert estimate.low == pytest.approx(2 - T_2 / math.sqrt(3), rel=1e-9)
    assert estimate.high == pytest.approx(2 + T_2 / math.sqrt(3), rel=1e-9)
    assert estimate.n == 3


def test_the_interval_of_a_ratio_is_that_of_its_logarithm():
    # ratios 2, 4 and 8: logarithms 1, 2 and 3 times ln 2, so their mean is 2 ln 2 and their deviation ln 2
    estimate = mean_ratio([(2, 1), (8, 2), (8, 1)])
    half_width = T_2 * math.log(2) / math.sqrt(3)
    assert estimate.value == pytest.approx(4.0)
    assert estimate.interval == pytest.approx((4 * math.exp(-half_width), 4 * math.exp(half_width)), rel=1e-9)


def test_a_ratio_the_other_way_round_is_the_reciprocal():
    pairs = [(10.0, 7.0), (11.0, 7.1), (10.5, 6.2)]
    forth, back = mean_ratio(pairs), mean_ratio([(b, a) for a, b in pairs])
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.interval == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0]])
def test_fewer_than_three_pairs_give_no_interval(values):
    assert mean_difference(values).interval is None
    assert mean_ratio([(value, 1.0) for value in values]).interval is None
    assert not mean_difference(values).exact


def test_identical_values_are_exact_and_have_no_interval():
    assert mean_difference([0.1, 0.1, 0.1]) == Estimate(value=0.1, n=3, exact=True)
    assert mean_ratio([(3.0, 2.0), (6.0, 4.0)]) == Estimate(value=1.5, n=2, exact=True)


def test_an_estimate_resolves_only_what_its_interval_leaves_out():
    wide = mean_difference([-1.0, 0.5, 1.0])
    narrow = mean_difference([1.0, 1.01, 1.02])
    assert not wide.resolves(0.0)
    assert narrow.resolves(0.0)
    assert mean_difference([2.0, 2.0, 2.0]).resolves(0.0)
    assert not mean_difference([0.0, 0.0, 0.0]).resolves(0.0)
    assert not mean_difference([5.0, 6.0]).resolves(0.0), "two pairs resolve nothing"


def test_a_negated_estimate_swaps_the_ends_of_its_interval():
    estimate = mean_difference([1.0, 2.0, 3.0])
    assert estimate.mapped(neg) == mean_difference([-1.0, -2.0, -3.0])


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_cover_the_truth_about_95_times_in_100(n):
    noise = random.Random(1)
    covered = sum(not mean_difference([noise.gauss(0.3, 1.0) for _ in range(n)]).resolves(0.3) for _ in range(3000))
    assert 0.94 <= covered / 3000 <= 0.96


def test_spread_is_the_sample_sd_and_absent_for_one_seed():
    assert spread([1.0, 2.0, 3.0]).sd == pytest.approx(1.0)
    assert spread([1.0]).sd is None
    assert spread([]) is None
