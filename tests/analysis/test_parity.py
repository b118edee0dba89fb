import pytest
from synthetic_records import run, sweep

from ampsweep.analysis.judgements import overall_parity, parity
from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.runs import Run

SEEDS = [2.00, 2.02, 1.98]


def pairs(gaps, seeds=SEEDS, **more):
    times = [1.0] * len(gaps)
    losses = [base + gap for base, gap in zip(seeds, gaps, strict=True)]
    entries = sweep("fp32", times, val_loss=list(seeds)) + sweep("amp_bf16", times, val_loss=losses, **more)
    return pair_runs([Run(*entry) for entry in entries], "fp32").pairs


def of_loss(gaps, margin_pct=1.0, **more):
    return parity(pairs(gaps, **more), "val/loss", margin_pct=margin_pct)


def of_accuracy(accuracies, margin_pct=1.0):
    entries = sweep("fp32", [1.0] * 3, accuracy=0.90) + sweep("amp_bf16", [1.0] * 3, accuracy=accuracies)
    found = pair_runs([Run(*entry) for entry in entries], "fp32").pairs
    return parity(found, "val/accuracy", margin_pct=margin_pct)


@pytest.mark.parametrize(
    ("gaps", "verdict", "not_worse"),
    [
        ([0.001, 0.002, 0.000], "equivalent", True),
        ([0.050, 0.052, 0.048], "worse", False),
        ([-0.050, -0.052, -0.048], "better", True),
        ([0.010, 0.030, -0.020], "inconclusive", False),
        ([-0.010, -0.030, -0.020], "inconclusive", True),
    ],
)
def test_the_verdict_on_a_loss(gaps, verdict, not_worse):
    found = of_loss(gaps)
    assert (found.verdict, found.not_worse) == (verdict, not_worse)


def test_the_margin_is_a_share_of_the_baselines_mean_loss():
    found = of_loss([0.001, 0.002, 0.000], margin_pct=1.5)
    assert found.margin == pytest.approx(0.03)
    assert found.margin_pct == 1.5
    assert found.gap == pytest.approx(0.001)


def test_seeds_that_differ_do_not_blur_a_constant_gap():
    assert of_loss([0.0010, 0.0012, 0.0011], seeds=[1.0, 2.0, 3.0]).verdict == "equivalent"


def test_an_accuracy_is_better_higher_with_a_margin_in_points():
    assert of_accuracy([0.901, 0.899, 0.900]).verdict == "equivalent"
    assert of_accuracy([0.850, 0.852, 0.848]).verdict == "worse"
    assert of_accuracy([0.950, 0.952, 0.948]).verdict == "better"
    assert of_accuracy([0.901, 0.899, 0.900]).margin == pytest.approx(0.01)
    assert of_accuracy([0.950, 0.952, 0.948]).gap == pytest.approx(0.05)


def test_what_is_inconclusive_has_further_seeds():
    found = of_loss([0.010, 0.030, -0.020])
    assert found.further_seeds == 21


def test_more_seeds_than_anybody_runs_are_not_counted():
    found = of_loss([0.5, -0.5, 0.2])
    assert found.further_seeds is None


def test_two_pairs_give_a_gap_and_no_interval():
    found = of_loss([0.001, 0.002], seeds=SEEDS[:2])
    assert (found.verdict, found.low, found.high, found.further_seeds) == ("inconclusive", None, None, 1)
    assert not found.is_tested


def test_identical_losses_are_equivalent():
    found = of_loss([0.0, 0.0, 0.0])
    assert (found.verdict, found.low, found.high) == ("equivalent", 0.0, 0.0)
    assert found.gap == 0


def test_runs_cut_short_give_no_parity():
    assert of_loss([0.001, 0.002, 0.000], cut_short="trainer.max_seconds=20 reached") is None


def test_a_contaminated_run_learns_the_same_and_counts():
    assert of_loss([0.001, 0.002, 0.000], contamination={"verdict": "contaminated", "reasons": ["load"]}).n == 3


def test_a_baseline_loss_of_zero_has_no_margin():
    entries = [run("fp32", val_loss=0.0), run("amp_bf16", val_loss=0.1)]
    found = pair_runs([Run(*entry) for entry in entries], "fp32").pairs
    assert parity(found, "val/loss", margin_pct=1.0) is None


def test_several_metrics_are_as_good_as_the_worst_of_them():
    same, worse, open_ = (of_loss(gaps) for gaps in ([0.0] * 3, [0.05, 0.052, 0.048], [0.01, 0.03, -0.02]))
    assert overall_parity([same, open_]) == "inconclusive"
    assert overall_parity([open_, worse]) == "worse"
    assert overall_parity([same]) == "equivalent"
    assert overall_parity([]) is None
