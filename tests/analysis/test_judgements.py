import pytest
from synthetic_records import failed, run, sweep, workload

from ampsweep.analysis.judgements import overall_parity, parity
from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.runs import Run

LOSSES = [2.00, 2.02, 1.98]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)
FAST = [100.0, 101.0, 99.0]


def candidate(entries):
    (arm,) = workload(entries).verdict.arms
    return arm


def pairs(entries):
    return pair_runs([Run(*entry) for entry in entries], "fp32").pairs


def of_loss(gaps, margin_pct=1.0, seeds=LOSSES, **more):
    losses, times = [base + gap for base, gap in zip(seeds, gaps, strict=True)], [1.0] * len(gaps)
    entries = sweep("fp32", times, val_loss=list(seeds)) + sweep("amp_bf16", times, val_loss=losses, **more)
    return parity(pairs(entries), "val/loss", margin_pct=margin_pct)


def test_swapping_the_arms_swaps_the_winner():
    slow = [200.0, 203.0, 197.0]
    for before, after, factor in ((slow, FAST, 2.0), (FAST, slow, 0.5)):
        figures = candidate(sweep("fp32", before) + sweep("amp_bf16", after)).judgements.figures
        assert figures.speedup.value == pytest.approx(factor, rel=1e-3)


def test_parity_of_a_loss():
    for gaps, margin_pct, verdict, not_worse in (
        ([0.001, 0.002, 0.000], 1.0, "equivalent", True),
        ([0.050, 0.052, 0.048], 1.0, "worse", False),
        ([-0.050, -0.052, -0.048], 1.0, "better", True),
        ([0.010, 0.030, -0.020], 1.0, "inconclusive", False),
        ([-0.010, -0.030, -0.020], 1.0, "inconclusive", True),
        ([0.1, 0.11, 0.12], 20.0, "equivalent", True),
    ):
        found = of_loss(gaps, margin_pct)
        assert (found.verdict, found.not_worse) == (verdict, not_worse)


def test_the_margin_is_a_share_of_the_baselines_mean_loss():
    found = of_loss([0.001, 0.002, 0.000], 1.5)
    assert (found.margin, found.margin_pct, found.gap) == (pytest.approx(0.03), 1.5, pytest.approx(0.001))
    assert of_loss([0.0010, 0.0012, 0.0011], seeds=[1.0, 2.0, 3.0]).verdict == "equivalent", "gaps are paired by seed"
    zero = pairs([run("fp32", val_loss=0.0), run("amp_bf16", val_loss=0.1)])
    assert parity(zero, "val/loss", margin_pct=1.0) is None


def test_an_accuracy_is_better_higher_with_a_margin_in_points():
    for accuracies, verdict, gap, not_worse in (
        ([0.901, 0.899, 0.900], "equivalent", 0.0, True),
        ([0.850, 0.852, 0.848], "worse", -0.05, False),
        ([0.950, 0.952, 0.948], "better", 0.05, True),
        ([0.92, 0.91, 0.90], "inconclusive", 0.01, True),
    ):
        entries = sweep("fp32", [1.0] * 3, accuracy=0.90) + sweep("amp_bf16", [1.0] * 3, accuracy=accuracies)
        found = parity(pairs(entries), "val/accuracy", margin_pct=1.0)
        assert (found.verdict, found.not_worse) == (verdict, not_worse)
        assert (found.margin, found.gap) == (pytest.approx(0.01), pytest.approx(gap, abs=1e-9))


def test_further_seeds_settle_it_and_the_worst_metric_decides():
    assert of_loss([0.010, 0.030, -0.020]).further_seeds == 21
    assert of_loss([0.5, -0.5, 0.2]).further_seeds is None
    two = of_loss([0.001, 0.002], seeds=LOSSES[:2])
    assert (two.verdict, two.low, two.high, two.further_seeds) == ("inconclusive", None, None, 1)
    same = of_loss([0.0, 0.0, 0.0])
    assert (same.verdict, same.low, same.high, same.gap) == ("equivalent", 0.0, 0.0, 0)
    assert of_loss([0.001, 0.002, 0.000], cut_short="trainer.max_seconds=20 reached") is None
    same, worse, unsettled = (of_loss(gaps) for gaps in ([0.0] * 3, [0.05, 0.052, 0.048], [0.01, 0.03, -0.02]))
    assert overall_parity([same, unsettled]) == "inconclusive"
    assert overall_parity([unsettled, worse]) == "worse"
    assert (overall_parity([same]), overall_parity([])) == ("equivalent", None)


def test_an_arm_short_of_pairs_says_what_is_missing():
    lost = failed("amp_fp16", 2, "diverged", "loss is nan")
    missing = candidate([*FP32, *sweep("amp_fp16", [50.0, 51.0]), lost]).too_few_pairs
    assert (missing.num_completed, missing.num_expected, missing.unsupported) == (2, 3, False)
    assert missing.failures == {"diverged": 1}
    other = sweep("amp_bf16", [1.0] * 3, environment={"commit": "b"}, pair_key=["x", "y", "z"])
    missing = candidate(FP32 + other).too_few_pairs
    assert (missing.num_completed, missing.failures) == (0, {})
