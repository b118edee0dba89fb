import pytest
from synthetic_records import contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.report.sentences import recommending

FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=[2.00, 2.02, 1.98])


def workload_of(entries, baseline="fp32", margin_pct=1.0):
    (workload,) = compare(entries, baseline=baseline, margin_pct=margin_pct).workloads
    return workload


def sentence(entries, **options):
    return recommending.conclusion(workload_of(entries, **options))


def test_it_names_speedup_memory_and_loss_gap_each_with_its_n():
    bf16 = sweep("amp_bf16", [100.0, 101.0, 99.0], peak_mib=600.0, val_loss=[2.003, 2.021, 1.984])
    text = sentence(FP32 + bf16)
    assert text.startswith("Against fp32, amp_bf16 (n=3): 1.50x [1.")
    assert (
        "] the speed, saves 400 MiB of peak memory (40.0%), val loss gap +0.0027 (+0.13%), equivalent within 1%" in text
    )
    assert text.count("n=") == 1, "said once where it is that of every figure"
    assert "no conclusion" not in text
    assert text.endswith(".")


def test_a_figure_of_fewer_pairs_than_were_completed_says_so():
    planted = contaminated("amp_bf16", 2, peak_mib=600.0)
    text = sentence(FP32 + sweep("amp_bf16", [100.0, 101.0], peak_mib=600.0) + [planted])
    assert "amp_bf16 (n=3): 1.51x the speed (n=2, without 1 contaminated amp_bf16 run), saves 400 MiB" in text


def test_a_slower_arm_that_adds_memory_is_said_to_be_that():
    text = sentence(FP32 + sweep("amp_fp16", [1500.0, 1540.0, 1460.0], peak_mib=1250.0))
    assert "amp_fp16 (n=3): 0.1" in text
    assert "adds 250 MiB of peak memory (25.0%)" in text
    assert "saves" not in text


def test_swapping_the_arms_swaps_the_winner():
    fast, slow = [100.0, 101.0, 99.0], [200.0, 203.0, 197.0]
    assert "amp_bf16 (n=3): 2.00x" in sentence(sweep("fp32", slow) + sweep("amp_bf16", fast))
    assert "amp_bf16 (n=3): 0.500x" in sentence(sweep("fp32", fast) + sweep("amp_bf16", slow))


def test_an_interval_that_contains_1_resolves_no_speed_difference():
    assert "tf32 (n=3): no resolved speed difference, " in sentence(FP32 + sweep("tf32", [151.0, 149.0, 150.0]))


def test_memory_noise_resolves_no_difference_in_memory():
    text = sentence(FP32 + sweep("tf32", [100.0] * 3, peak_mib=[1001.0, 999.0, 1000.5]))
    assert "no resolved memory difference" in text


def test_the_same_memory_and_loss_are_said_to_be_the_same():
    text = sentence(FP32 + sweep("tf32", [100.0] * 3, val_loss=[2.00, 2.02, 1.98]))
    assert "the same peak memory, no val loss gap" in text


@pytest.mark.parametrize(
    ("gaps", "margin_pct", "told"),
    [
        ([0.001, 0.0012, 0.0011], 1.0, "val loss gap +0.0011 (+0.055%), equivalent within 1%"),
        ([0.021, 0.022, 0.023], 1.0, "val loss gap +0.022 (+1.1%), worse by more than 1%"),
        ([-0.021, -0.022, -0.023], 1.0, "val loss gap -0.022 (-1.1%), better by more than 1%"),
        ([-0.03, 0.04, 0.01], 1.0, "val loss gap +0.0067 (+0.33%), parity inconclusive"),
        ([0.1, 0.11, 0.12], 20.0, "val loss gap +0.11 (+5.5%), equivalent within 20%"),
    ],
)
def test_the_gap_is_told_with_its_parity(gaps, margin_pct, told):
    losses = [base + gap for base, gap in zip([2.00, 2.02, 1.98], gaps, strict=True)]
    assert told in sentence(FP32 + sweep("amp_bf16", [100.0] * 3, val_loss=losses), margin_pct=margin_pct)


def test_contaminated_runs_are_left_out_of_speed_and_said_to_be():
    planted = contaminated("amp_bf16", 3, step_ms=900.0, peak_mib=600.0)
    text = sentence([*FP32, run("fp32", 3), *sweep("amp_bf16", [100.0, 101.0, 99.0], peak_mib=600.0), planted])
    assert "1.50x" in text
    assert "without 1 contaminated amp_bf16 run" in text
    assert "400 MiB of peak memory (40.0%)" in text


def test_where_every_run_of_an_arm_is_contaminated_no_speed_is_concluded():
    text = sentence([*FP32, *(contaminated("amp_bf16", seed, peak_mib=600.0) for seed in range(3))])
    assert "speed not compared" in text
    assert "3 contaminated amp_bf16 runs" in text
    assert "400 MiB of peak memory (40.0%)" in text


def test_an_unsupported_arm_is_named_and_nothing_is_concluded_about_it():
    refused = [failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)]
    text = sentence(FP32 + refused + sweep("amp_bf16", [100.0, 101.0, 99.0]))
    assert "amp_bf16 (n=3): 1.50x" in text
    assert "no conclusion about tf32: unsupported on this device" in text


def test_an_arm_short_of_three_pairs_gets_no_conclusion_although_it_has_figures():
    runs = FP32 + sweep("amp_fp16", [50.0, 51.0]) + [failed("amp_fp16", 2, "diverged", "loss is nan")]
    (arm,) = recommending.conclusions(workload_of(runs))
    assert arm.withheld
    assert sentence(runs) == "No conclusion about amp_fp16: 2 of 3 pairs completed (1 diverged)."


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([run("fp32"), run("amp_bf16")], "1 of 1 pair completed and 3 are needed"),
        (FP32 + sweep("amp_bf16", [1.0, 1.0]), "2 of 3 pairs completed (1 not run)"),
        ([*FP32[:2], failed("fp32", 2, "oom"), *sweep("amp_bf16", [1.0] * 3)], "2 of 3 pairs completed (1 fp32 oom)"),
        (FP32 + sweep("amp_bf16", [1.0] * 3, environment={"commit": "b"}, pair_key=["x", "y", "z"]), "0 of 3 pairs"),
        ([*FP32, *(failed("amp_bf16", s, "oom") for s in range(3))], "0 of 3 pairs completed (3 oom)"),
        ([*FP32[:2], disproved("fp32", 2), *sweep("amp_bf16", [1.0] * 3)], "2 of 3 pairs completed (1 fp32 disproved)"),
    ],
    ids=["single seed", "seed missing", "baseline failed", "other code", "out of memory", "baseline disproved"],
)
def test_why_nothing_is_concluded_is_said(entries, why):
    assert f"No conclusion about amp_bf16: {why}" in sentence(entries)


def test_an_arm_cut_short_is_refused_parity_but_its_speed_is_told():
    short = sweep("amp_fp16", [1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20 passed")
    text = sentence(FP32 + short)
    assert "No conclusion about amp_fp16: 0 of 3 pairs completed (3 cut short)" in text
    assert "] the speed, n=3" in text
    assert "val loss" not in text


def test_without_a_baseline_or_without_another_arm_there_is_no_conclusion():
    assert sentence(FP32, baseline="tf32") == "No conclusion: there is no tf32 run to compare with."
    assert sentence(FP32) == "No conclusion: there is no arm besides fp32."


def test_a_judged_arm_without_a_measured_figure_says_so():
    text = sentence(
        sweep("fp32", [1.0] * 3, peak_mib=None, val_loss=None) + sweep("tf32", [1.0] * 3, peak_mib=None, val_loss=None)
    )
    assert "memory not measured" in text
    assert "no final loss to compare" in text
