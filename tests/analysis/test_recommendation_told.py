"""What is recommended and concluded, in words."""

from dataclasses import replace

import pytest
from synthetic_records import contaminated, disproved, failed, run, sweep

from ampsweep.analysis.candidates import ContradictsMode, Diverged, MostlyFailing, TooFewPairs, Unsupported, Worse
from ampsweep.analysis.comparison import compare

FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=[2.00, 2.02, 1.98])
SAME = [2.001, 2.019, 1.981]
OPEN = [2.02, 2.005, 2.0]
FAST = [100.0, 101.0, 99.0]
BF16 = sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0)
SMALL = sweep("fp32", [6.0, 6.1, 5.9]) + sweep("amp_bf16", [4.0] * 3, peak_mib=600.0)


def workload(entries, baseline="fp32"):
    (only,) = compare(entries, baseline=baseline, margin_pct=1.0).workloads
    return only


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        (
            FP32 + BF16,
            "Train in amp_bf16: against fp32, 1.50x [1.46, 1.54] the speed, saves 400 MiB of peak memory (40.0%), "
            "val loss gap +0.00033 (+0.017%), equivalent within 1% (n=3).",
        ),
        (
            FP32 + sweep("amp_fp16", [300.0, 303.0, 297.0], val_loss=SAME, peak_mib=600.0),
            "Stay with fp32: amp_fp16 has 0.500x [0.488, 0.513] the speed, saves 400 MiB of peak memory (40.0%), val "
            "loss gap +0.00033 (+0.017%), equivalent within 1% (n=3).",
        ),
        (
            FP32 + [failed("tf32", seed, "failed") for seed in range(3)],
            "Stay with fp32: every other arm is refused, or short of three completed pairs.",
        ),
    ],
    ids=["another arm", "the baseline", "nothing to judge"],
)
def test_what_is_decided(entries, sentence):
    verdict = workload(entries).verdict
    assert verdict.sentence == sentence
    assert verdict.to_decide == []


@pytest.mark.parametrize(
    ("entries", "reason", "step"),
    [
        (
            [failed("fp32", seed, "oom") for seed in range(3)] + BF16,
            "fp32, which all is compared with, is refused: out of memory in 3 of 3 runs",
            "compare with another arm (report.baseline)",
        ),
        (FP32, "there is no arm besides fp32", "run other precision modes"),
        (
            SMALL,
            "the workload is too small to judge speed by",
            "compare on a larger model, batch or sequence",
        ),
        (
            FP32 + sweep("amp_fp16", FAST[:2], val_loss=SAME[:2]),
            "amp_fp16 may be better than fp32, but 2 of 3 pairs completed",
            "complete 1 more pair of amp_fp16 with the baseline",
        ),
        (
            FP32 + sweep("amp_fp16", FAST, cut_short="time"),
            "amp_fp16 may be better than fp32, but 0 of 3 pairs completed (3 cut short)",
            "let amp_fp16 take all of its steps (fewer trainer.steps, or more trainer.max_seconds)",
        ),
        (
            FP32 + [contaminated("amp_bf16", seed, val_loss=SAME[seed]) for seed in range(3)],
            "amp_bf16 may be better than fp32, but its speed is not known well enough: speed not compared "
            "(3 contaminated amp_bf16 runs)",
            "time amp_bf16 again with more seeds, on an idle machine",
        ),
        (
            sweep("fp32", [150.0, 153.0, 147.0], val_loss=None) + sweep("amp_bf16", FAST, val_loss=None),
            "amp_bf16 may be better than fp32, but no validation loss was recorded",
            "use data with a validation part, so that there is a final loss to compare",
        ),
        (
            FP32 + sweep("amp_bf16", FAST, val_loss=OPEN),
            "amp_bf16 may be better than fp32, but its val loss may be worse by more than the margin (gap +0.008 "
            "[-0.026, +0.042] crosses ±0.020 (1%), n=3)",
            "run about 18 more seeds of amp_bf16 and the baseline",
        ),
        (
            FP32 + sweep("amp_bf16", FAST, val_loss=[2.5, 1.52, 2.18]),
            "amp_bf16 may be better than fp32, but its val loss may be worse by more than the margin (gap +0.07 "
            "[-0.80, +0.93] crosses ±0.020 (1%), n=3)",
            "train longer, or for the next runs accept a wider report.margin_pct than 1 (more than 100 more seeds "
            "would be needed)",
        ),
    ],
    ids=[
        "baseline refused",
        "no other arm",
        "too small",
        "pair missing",
        "cut short",
        "speed not known",
        "no loss",
        "parity open",
        "parity hopeless",
    ],
)
def test_what_is_not_decidable_and_what_would_decide_it(entries, reason, step):
    verdict = workload(entries).verdict
    assert verdict.sentence == f"Not decidable yet: {reason}; {step}."
    assert verdict.to_decide == [step]


def test_without_the_baseline_there_is_nothing_to_compare_with():
    verdict = workload(FP32, baseline="tf32").verdict
    step = "run tf32, or compare with another arm (report.baseline)"
    assert verdict.sentence == f"Not decidable yet: there is no tf32 run to compare with; {step}."
    assert verdict.to_decide == [step]


def test_every_arm_is_told_how_it_came_out():
    entries = [*FP32, *BF16, *sweep("tf32", [140.0, 141.0], val_loss=SAME[:2])]
    entries += [failed("amp_fp16", seed, "unsupported") for seed in range(3)]
    verdict = workload(entries).verdict
    told = {one.arm: one.reason for one in verdict.recommendation.standings}
    assert told.pop("amp_bf16").endswith(", equivalent within 1% (n=3)")
    assert told == {
        "fp32": "what the others are compared with",
        "tf32": "2 of 3 pairs completed",
        "amp_fp16": "unsupported on this device",
    }


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (Unsupported(), "unsupported on this device"),
        (ContradictsMode(cause="lost bits", seeds=(0, 1, 2)), "lost bits in seeds 0, 1, 2"),
        (Diverged(cause="loss is nan", seeds=(2,)), "loss is nan in seed 2"),
        (Diverged(cause="", seeds=(0, 1)), "diverged in seeds 0, 1"),
        (MostlyFailing(outcome="oom", num_such=2, num_runs=3, cause="no memory"), "out of memory in 2 of 3 runs"),
        (
            MostlyFailing(outcome="failed", num_such=3, num_runs=3, cause="KeyError: x"),
            "failed in 3 of 3 runs (KeyError: x)",
        ),
    ],
    ids=["unsupported", "disproved", "diverged", "diverged without an error", "out of memory", "failed"],
)
def test_why_an_arm_is_refused(of, text):
    assert of.sentence == text


def test_an_arm_that_learns_worse_is_refused_with_its_gap():
    (arm,) = workload(FP32 + sweep("amp_fp16", FAST, val_loss=[2.10, 2.12, 2.08])).verdict.arms
    held = arm.judgements.parities[0]
    assert Worse(parity=held).sentence == f"val loss is worse: {held.grounds}"


MISSING = TooFewPairs(
    arm="amp_bf16",
    unsupported=False,
    num_completed=2,
    num_expected=3,
    failures={},
)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"num_completed": 1, "num_expected": 1}, "1 of 1 pair completed and 3 are needed"),
        ({}, "2 of 3 pairs completed"),
        ({"failures": {"oom": 1}}, "2 of 3 pairs completed (1 oom)"),
        ({"unsupported": True}, "unsupported on this device"),
    ],
    ids=["single seed", "seed missing", "out of memory", "unsupported"],
)
def test_which_pairs_are_missing(facts, text):
    assert replace(MISSING, **facts).sentence == text


def test_the_conclusion_names_each_arm_with_its_n():
    text = workload(FP32 + sweep("amp_bf16", FAST, peak_mib=600.0, val_loss=[2.003, 2.021, 1.984])).conclusion
    assert text.startswith("Against fp32, amp_bf16 (n=3): 1.50x [1.")
    assert text.endswith(
        "] the speed, saves 400 MiB of peak memory (40.0%), val loss gap +0.0027 (+0.13%), equivalent within 1%."
    )
    assert text.count("n=") == 1, "said once where it is that of every figure"


def test_a_figure_of_fewer_pairs_than_completed_says_so():
    planted = contaminated("amp_bf16", 2, peak_mib=600.0)
    text = workload(FP32 + sweep("amp_bf16", [100.0, 101.0], peak_mib=600.0) + [planted]).conclusion
    assert "amp_bf16 (n=3): 1.51x the speed (n=2, without 1 contaminated amp_bf16 run), saves 400 MiB" in text


def test_nothing_is_concluded_about_arms_short_of_pairs():
    refused = [failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)]
    only = workload([*FP32, *refused, *BF16])
    assert only.conclusion.startswith("Against fp32, amp_bf16 (n=3): ")
    assert only.conclusion.endswith("; no conclusion about tf32: unsupported on this device.")
    assert [(one.arm, one.too_few_pairs is None) for one in only.verdict.arms] == [("tf32", False), ("amp_bf16", True)]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([*sweep("amp_fp16", [50.0, 51.0]), failed("amp_fp16", 2, "diverged", "nan")], "2 of 3 pairs completed (1 di"),
        ([failed("amp_fp16", seed, "oom") for seed in range(3)], "0 of 3 pairs completed (3 oom)."),
        ([*(run("amp_fp16", seed) for seed in range(2)), disproved("amp_fp16", 2)], "2 of 3 pairs completed (1 dis"),
    ],
    ids=["diverged", "out of memory", "disproved"],
)
def test_why_nothing_is_concluded(entries, why):
    assert workload(FP32 + entries).conclusion.startswith(f"No conclusion about amp_fp16: {why}")


def test_of_an_arm_cut_short_the_speed_is_told_and_no_loss():
    short = sweep("amp_fp16", [1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20 passed")
    text = workload(FP32 + short).conclusion
    assert text.startswith("No conclusion about amp_fp16: 0 of 3 pairs completed (3 cut short), 0.1")
    assert text.endswith("] the speed, n=3.")


def test_cautions_end_the_conclusion():
    assert workload(SMALL).conclusion.endswith("under 50 us, launching them counts).")


def test_without_two_arms_there_is_no_conclusion():
    missing = workload(FP32, baseline="tf32")
    assert missing.conclusion == "No conclusion: there is no tf32 run to compare with."
    assert workload(FP32).conclusion == "No conclusion: there is no arm besides fp32."
