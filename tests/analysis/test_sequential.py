"""Tests that look after each pair: their levels, decisions that stand, and the errors of all looks together."""

import math

import numpy as np
import pytest
from scipy.special import ndtri
from synthetic_records import arms, sweep, workload

from ampsweep.analysis.sequential import (
    ALPHA_OF_LOOKS,
    CONFIDENCE_OF_LOOKS,
    equivalence_tests,
    is_settled,
    level_of_looks,
    nominal_levels,
    seeds_for,
)
from ampsweep.analysis.statistics import POWER, mean_ratio, two_one_sided_tests


def test_the_boundaries_are_the_published_ones():
    """R's gsDesign, gsDesign(k=5, test.type=1, sfu=sfLDOF): five equal looks, one-sided 2.5%."""
    levels = nominal_levels((0.2, 0.4, 0.6, 0.8, 1.0), alpha=0.025)
    assert -ndtri(levels) == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-4)
    assert level_of_looks(3) == {3: pytest.approx(ALPHA_OF_LOOKS)}, "a single look has all of it"


@pytest.mark.parametrize("max_pairs", [5, 12, 40])
def test_the_levels_spend_what_there_is(max_pairs):
    levels = level_of_looks(max_pairs)
    assert list(levels) == [*range(3, max_pairs + 1)]
    assert list(levels.values()) == sorted(levels.values())
    walks = np.random.default_rng(max_pairs).normal(size=(100_000, max_pairs)).cumsum(axis=1)
    z = walks[:, 2:] / np.sqrt([*levels])
    assert (z > -ndtri([*levels.values()])).any(axis=1).mean() == pytest.approx(ALPHA_OF_LOOKS, abs=0.002)


def decided(gaps, ended_at=None, max_pairs=12):
    """The parity of an arm whose losses differ from the baseline's by `gaps` margins, seed by seed."""
    entries = sweep("fp32", [100.0] * len(gaps))
    entries += sweep("amp_bf16", [80.0] * len(gaps), val_loss=[2.0 + 0.02 * gap for gap in gaps])
    for _, record in entries:
        record.ended_at = f"2026-01-01T00:{(ended_at or range(99))[record.identity.seed]:02}:00+00:00"
    (parity,) = workload(entries, max_pairs=max_pairs).verdict.arms[0].judgements.parities
    return parity


CLEAR = [0.10, -0.12, 0.05, 0.01, -0.06, 0.08]


def test_a_decision_stands_whatever_comes_later():
    found = decided(CLEAR)
    assert (found.verdict, found.n, found.further_seeds) == ("equivalent", 4, 0)
    assert decided([*CLEAR, 9.0, -9.0, 9.0]) == found
    assert decided([9.0, *CLEAR], ended_at=[50, *range(6)]) == found, "pairs count in the order of their completion"
    assert decided(CLEAR, max_pairs=None).n == 6
    assert "n=4 of at most 12" in found.sentence


def test_after_the_plan_nothing_more_is_decided():
    open_ones = decided([1.5, -0.5, 0.5, 0.9, 0.2])
    assert open_ones.verdict == "inconclusive"
    ended = decided([1.5, -0.5, 0.5, 0.9, 0.2] + [0.0] * 20, max_pairs=5)
    assert (ended.verdict, ended.n, ended.further_seeds) == ("inconclusive", 5, None)
    assert ended.sentence.endswith("n=5 of at most 5")


def test_an_arm_known_not_to_be_worse_stays_so():
    better = [-1.2, -0.4, -0.9, -0.5, -1.1, -0.6, -0.8]
    assert decided(better).not_worse
    assert decided([*better, 2.5, 2.5]).not_worse


def test_repeated_looks_keep_the_errors_of_one_test():
    rng = np.random.default_rng(0)
    counted = dict.fromkeys(("inside", "above", "below", "open"), 0)
    for differences in rng.normal(1.0, 0.5, (4000, 12)):
        *_, last = equivalence_tests(differences, [1.0] * 12, 12)
        counted[last.position] += 1
    naive = sum(
        any(two_one_sided_tests(differences[:n], 1.0).position == "inside" for n in range(3, 13))
        for differences in rng.normal(1.0, 0.5, (500, 12))
    )
    assert counted["inside"] / 4000 < 0.06
    assert counted["above"] / 4000 < 0.06
    assert naive / 500 > 0.1, "looks at the level of a single test err more often"


@pytest.mark.parametrize(
    ("step_ms", "settled"),
    [
        ([100.0, 100.4, 99.7], True),  # about as fast, by a narrow interval
        ([100.0, 104.0, 97.0], False),
        ([80.0, 84.0, 77.0], True),  # known roughly, but known to be faster
        ([120.0, 123.0, 118.0], True),
        ([96.0, 99.0, 98.0], False),
        ([100.0, 100.4], False),
        ([100.0, 100.0], True),
    ],
)
def test_a_speed_is_settled_by_its_interval(step_ms, settled):
    of = arms([*sweep("fp32", [100.0] * len(step_ms)), *sweep("tf32", step_ms)], max_pairs=12)["tf32"].speedup
    assert is_settled(of) is settled, of


def test_intervals_cover_the_truth_though_pairs_end_when_they_are_narrow():
    rng = np.random.default_rng(0)
    covered = {0.95: 0, CONFIDENCE_OF_LOOKS: 0}
    for logs in rng.normal(0, 0.042, (1500, 12)):
        for confidence in covered:
            looks = [mean_ratio([(math.exp(log), 1.0) for log in logs[:n]], confidence) for n in range(3, 13)]
            last = next(filter(is_settled, looks), looks[-1])
            covered[confidence] += not last.resolves(1.0)
    assert covered[CONFIDENCE_OF_LOOKS] / 1500 > 0.94
    assert covered[0.95] / 1500 < 0.92, "that is why the level is 98%"


@pytest.mark.parametrize(("sd", "max_pairs"), [(0.3, 3), (0.2, 12), (0.5, 12), (0.9, 12), (0.3, 40), (0.9, 40)])
def test_the_planned_seeds_find_an_equal_arm_equivalent(sd, max_pairs):
    num_seeds = seeds_for(sd, max_pairs)
    gaps = np.random.default_rng(0).normal(0.0, sd, (800, num_seeds))
    tests = [[*equivalence_tests(one, [1.0] * num_seeds, max_pairs)] for one in gaps]
    found = sum(looks[-1].position == "inside" for looks in tests) / 800
    assert found > POWER - 0.03, (num_seeds, found)
    fewer = sum(looks[-1].position == "inside" and looks[-1].n < num_seeds - 1 for looks in tests) / 800
    assert fewer < POWER, "with two seeds less it is less likely"
    assert seeds_for(1.2, 12) is None
