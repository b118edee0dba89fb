import numpy as np
import pytest
from scipy.special import stdtrit

from ampsweep.analysis.statistics import MAX_FURTHER_PAIRS, POWER, two_one_sided_tests


def simulated(n, mean, sd, margin, comparisons=100_000):
    """Shares of comparisons found inside, above and below."""
    differences = np.random.default_rng(0).normal(mean, sd, (comparisons, n))
    half_width = stdtrit(n - 1, 0.95) * differences.std(axis=1, ddof=1) / np.sqrt(n)
    low, high = differences.mean(axis=1) - half_width, differences.mean(axis=1) + half_width
    return np.mean((-margin < low) & (high < margin)), np.mean(low > margin), np.mean(high < -margin)


@pytest.mark.parametrize(
    ("differences", "position"),
    [
        ([0.1, -0.1, 0.0], "inside"),
        ([2.0, 2.1, 1.9], "above"),
        ([-2.0, -2.1, -1.9], "below"),
        ([0.0, 2.0, 1.0], "open"),
        ([0.5, 0.9, 1.3], "open"),
        ([0.5, 0.5, 0.5], "inside"),
        ([1.5, 1.5, 1.5], "above"),
    ],
)
def test_all_of_the_interval_decides(differences, position):
    tested = two_one_sided_tests(differences, 1.0)
    assert tested.position == position
    assert tested.low <= tested.mean <= tested.high


def test_the_interval_is_that_of_student_at_90_percent():
    # NIST/SEMATECH e-Handbook, table of t: t(0.95, 3) = 2.353.
    tested = two_one_sided_tests([1.0, 2.0, 3.0, 4.0], 9.0)
    assert tested.mean == 2.5
    assert tested.high - tested.mean == pytest.approx(2.353 * 1.290994 / 2, rel=1e-3)


@pytest.mark.parametrize("differences", [[0.9, -0.8, 0.2], [2.5, 0.4, 1.6], [1.0, -0.2, 0.3]])
def test_the_pairs_it_names_find_an_answer_four_times_in_five(differences):
    tested = two_one_sided_tests(differences, 1.0)
    assert tested.position == "open"
    found = simulated(tested.n + tested.further_pairs, tested.mean, tested.sd, 1.0)
    assert POWER - 0.05 < sum(found) < POWER + 0.15


def test_at_the_margin_equality_is_found_once_in_twenty_at_most():
    for n in (3, 5, 10):
        assert simulated(n, 1.0, 0.3, 1.0)[0] <= 0.052


def test_a_difference_at_the_margin_is_never_settled():
    assert two_one_sided_tests([0.5, 1.0, 1.5], 1.0).further_pairs is None
    assert MAX_FURTHER_PAIRS == 100


def test_an_answer_needs_no_further_pairs():
    assert two_one_sided_tests([0.1, -0.1, 0.0], 1.0).further_pairs == 0
