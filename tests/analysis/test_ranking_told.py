"""What decided a recommendation, in words."""

from dataclasses import replace

import pytest
from ways_to_loss import ways

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.costs import Goal, PassedOver, Ranking

STEPS = [100.0, 101.0, 99.0]
TIMES = [10.0, 10.1, 9.9]


def verdict(*arms, **goal):
    entries = [entry for of_arm, _ in arms for entry in of_arm]
    curves = {directory: curve for _, of_arm in arms for directory, curve in of_arm.items()}
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, curves=curves, goal=Goal(**goal)).workloads
    return workload.verdict


def test_time_to_the_loss_comes_first_where_it_decides():
    found = verdict(
        ways("fp32", STEPS, seconds=TIMES),
        ways("amp_bf16", [1.2 * step for step in STEPS], seconds=[0.8 * time for time in TIMES]),
    )
    assert found.sentence == (
        "Train in amp_bf16: against fp32, 1.25x as fast to its final val loss, 0.833x the speed, the same peak memory, "
        "val loss equivalent (n=3)."
    )
    assert found.recommendation.goes_by == "the time to the val loss that fp32 ends at (and 1% of margin)"


def test_energy_to_the_loss_comes_first_where_it_decides():
    found = verdict(
        ways("fp32", STEPS, seconds=TIMES, watts=200.0),
        ways("amp_bf16", STEPS, seconds=TIMES, watts=100.0),
        objective="energy",
    )
    assert found.sentence.startswith("Train in amp_bf16: against fp32, 0.500x of the energy to its final val loss, ")
    assert found.recommendation.goes_by == "the energy to the val loss that fp32 ends at (and 1% of margin)"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("no curves", "no undisturbed curve of the loss is known of a, b"),
        ("other metrics", "the curves of a, b are of another loss"),
        ("no energy", "no energy was counted along the curves of a, b"),
        ("not reached", "a, b did not reach it in every pair"),
        ("too few pairs", "fewer than 3 pairs have curves of a, b"),
        ("too noisy", "that of a, b is too noisy"),
    ],
)
def test_why_the_time_to_the_loss_does_not_decide(kind, why):
    found = verdict(ways("fp32", STEPS, seconds=TIMES), ways("amp_bf16", STEPS, seconds=TIMES))
    ranked = Ranking(cost="step time", passed_over=(PassedOver(why=kind, arms=("a", "b")),))
    told = replace(found.recommendation, ranking=ranked).goes_by
    assert told == (f"the step time, among arms whose final loss is not worse; not by the time to the loss: {why}")
