import math
from operator import neg

import numpy as np
import pytest
from scipy.special import stdtrit

from ampsweep.analysis.statistics import POWER, Estimate, mean_difference, mean_ratio, spread, two_one_sided_tests
from ampsweep.text import merge_figures

T_2 = 4.302652729911275
"""Two-sided 95 % quantile of Student's t with 2 degrees of freedom, from printed tables (4.303) to double precision."""


def test_the_interval_of_a_mean_difference_is_that_by_hand():
    # mean 2, sample standard deviation 1, standard error 1 / sqrt(3)
    estimate = mean_difference([1.0, 2.0, 3.0])
    assert (estimate.value, estimate.n) == (pytest.approx(2.0), 3)
    assert estimate.interval == pytest.approx((2 - T_2 / math.sqrt(3), 2 + T_2 / math.sqrt(3)), rel=1e-9)
    assert estimate.mapped(neg) == mean_difference([-1.0, -2.0, -3.0])


def test_the_interval_of_a_ratio_is_that_of_its_logarithm():
    # ratios 2, 4 and 8: logarithms 1, 2 and 3 times ln 2, so their mean is 2 ln 2 and their deviation ln 2
    estimate = mean_ratio([(2, 1), (8, 2), (8, 1)])
    half_width = T_2 * math.log(2) / math.sqrt(3)
    assert estimate.value == pytest.approx(4.0)
    assert estimate.interval == pytest.approx((4 * math.exp(-half_width), 4 * math.exp(half_width)), rel=1e-9)
    back = mean_ratio([(1, 2), (2, 8), (1, 8)])
    assert (1 / back.high, 1 / back.value, 1 / back.low) == pytest.approx((estimate.low, 4.0, estimate.high))


def test_intervals_take_three_pairs_that_differ():
    for values in ([1.0], [1.0, 2.0]):
        assert mean_difference(values).interval is None
        assert mean_ratio([(value, 1.0) for value in values]).interval is None
        assert not mean_difference(values).exact
    assert mean_difference([0.1, 0.1, 0.1]) == Estimate(value=0.1, n=3, exact=True)
    assert mean_ratio([(3.0, 2.0), (6.0, 4.0)]) == Estimate(value=1.5, n=2, exact=True)
    assert (mean_difference([]), mean_ratio([]), spread([]), spread([1.0]).sd) == (None,) * 4
    assert spread([1.0, 2.0, 3.0]).sd == pytest.approx(1.0)


def test_an_estimate_resolves_only_what_its_interval_leaves_out():
    every = ([-1.0, 0.5, 1.0], [1.0, 1.01, 1.02], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [5.0, 6.0])
    assert [mean_difference(values).resolves(0.0) for values in every] == [False, True, True, False, False]


def simulated(n, mean, sd, margin, comparisons=100_000):
    """Shares of comparisons found inside, above and below."""
    differences = np.random.default_rng(0).normal(mean, sd, (comparisons, n))
    half_width = stdtrit(n - 1, 0.95) * differences.std(axis=1, ddof=1) / np.sqrt(n)
    low, high = differences.mean(axis=1) - half_width, differences.mean(axis=1) + half_width
    return np.mean((-margin < low) & (high < margin)), np.mean(low > margin), np.mean(high < -margin)


def test_all_of_the_interval_decides_on_equivalence():
    for differences, position in (
        ([0.1, -0.1, 0.0], "inside"),
        ([2.0, 2.1, 1.9], "above"),
        ([-2.0, -2.1, -1.9], "below"),
        ([0.5, 0.9, 1.3], "open"),
        ([-0.5, -0.9, -1.3], "open"),
        ([0.5, 0.5, 0.5], "inside"),
        ([1.5, 1.5, 1.5], "above"),
    ):
        tested = two_one_sided_tests(differences, 1.0)
        assert tested.position == position
        assert tested.low <= tested.mean <= tested.high
        assert position == "open" or tested.further_pairs() == 0


def test_the_interval_of_tost_is_that_of_student_at_90_percent():
    # NIST/SEMATECH e-Handbook, table of t: t(0.95, 3) = 2.353.
    tested = two_one_sided_tests([1.0, 2.0, 3.0, 4.0], 9.0)
    assert (tested.mean, tested.n) == (2.5, 4)
    assert tested.high - tested.mean == pytest.approx(2.353 * 1.290994 / 2, rel=1e-3)
    assert all(simulated(n, 1.0, 0.3, 1.0)[0] <= 0.052 for n in (3, 5, 10)), "5% at most at the margin"


@pytest.mark.parametrize("differences", [[0.9, -0.8, 0.2], [2.5, 0.4, 1.6], [1.0, -0.2, 0.3]])
def test_the_further_pairs_find_an_answer_four_times_in_five(differences):
    tested = two_one_sided_tests(differences, 1.0)
    found = simulated(tested.n + tested.further_pairs(), tested.mean, tested.sd, 1.0)
    assert POWER - 0.05 < sum(found) < POWER + 0.15
    assert two_one_sided_tests([0.5, 1.0, 1.5], 1.0).further_pairs() is None, "at the margin nothing settles it"


def test_an_estimate_and_its_interval_share_their_decimals():
    for of, text in (  # the examples of `Estimate.text` have others
        (Estimate(value=1.23e-7, n=3, low=-4e-8, high=2.9e-7), ("1.23e-07", ("-4.00e-08", "2.90e-07"))),
        (Estimate(value=0.0, n=3, low=-0.5, high=0.5), ("0.00", ("-0.50", "0.50"))),
        (Estimate(value=1.5, n=2), ("1.50", None)),
    ):
        assert of.text() == text


def test_texts_that_differ_in_measured_figures_are_one():
    for texts, merged in (
        (["0.6 of 2 cores busy", "1.0 of 2 cores busy"], ["0.6 to 1.0 of 2 cores busy"]),
        (["1.0 of 2 cores", "1.0 of 4 cores"], ["1.0 of 2 cores", "1.0 of 4 cores"]),
        (["nan at step 7, scale 1e-08", "nan at step 40, scale 2e-10"], ["nan at step 7 to 40, scale 2e-10 to 1e-08"]),
        (["2.00 GiB, 512 MiB free", "4.00 GiB, 64 MiB free"], ["2.00 to 4.00 GiB, 64 to 512 MiB free"]),
        (["torch 2.12.0", "torch 2.13.0"], ["torch 2.12.0", "torch 2.13.0"]),
        (["seed1.5a", "seed2.5a"], ["seed1.5a", "seed2.5a"]),
    ):
        assert [text for text, _ in merge_figures(texts)] == merged
