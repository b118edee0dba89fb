"""The arms that no other beats, with what is not known respected."""

import pytest
from synthetic_records import failed, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.front import Beaten

LOSSES = [2.00, 2.02, 1.98]
SAME = [2.001, 2.019, 1.981]
WORSE = [2.10, 2.12, 2.08]
BETTER = [1.90, 1.92, 1.88]
OPEN = [2.08, 1.95, 2.0]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)
FAST = [100.0, 101.0, 99.0]


def front(entries):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return workload.verdict.front


def beaten(entries):
    return {one.arm: one.beaten for one in front(entries).arms if one.beaten is not None}


def test_better_in_two_and_as_good_in_the_third_beats():
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0)
    assert beaten(entries) == {"fp32": Beaten(by="amp_bf16", worse_in=("time", "memory"))}


@pytest.mark.parametrize(
    "arm",
    [
        sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=1100.0),
        sweep("amp_bf16", FAST, val_loss=WORSE, peak_mib=600.0),
        sweep("amp_bf16", [200.0, 201.0, 199.0], val_loss=BETTER, peak_mib=1100.0),
    ],
    ids=["more memory", "worse loss", "better loss alone"],
)
def test_arms_each_better_in_something_are_all_on_the_front(arm):
    assert beaten(FP32 + arm) == {}


def test_an_arm_worse_in_all_is_beaten_in_all():
    entries = FP32 + sweep("amp_bf16", [200.0, 201.0, 199.0], val_loss=WORSE, peak_mib=1100.0)
    assert beaten(entries) == {"amp_bf16": Beaten(by="fp32", worse_in=("time", "memory", "loss"))}


def test_differences_of_less_than_two_percent_are_ties():
    entries = FP32 + sweep("amp_bf16", [151.0, 154.0, 148.0], val_loss=SAME, peak_mib=990.0)
    assert beaten(entries) == {}
    entries = FP32 + sweep("amp_bf16", [151.0, 154.0, 148.0], val_loss=SAME, peak_mib=900.0)
    assert beaten(entries) == {"fp32": Beaten(by="amp_bf16", worse_in=("memory",))}


@pytest.mark.parametrize(
    "arm",
    [
        sweep("amp_bf16", FAST, val_loss=OPEN, peak_mib=600.0),
        sweep("amp_bf16", [60.0, 290.0, 150.0], val_loss=SAME, peak_mib=600.0),
        sweep("amp_bf16", FAST[:2], val_loss=SAME[:2], peak_mib=600.0),
    ],
    ids=["loss not known", "speed not known", "two pairs"],
)
def test_an_arm_that_may_be_worse_beats_none(arm):
    assert beaten(FP32 + arm) == {}


def test_other_arms_are_held_against_each_other_by_their_pairs():
    """Both are hardly known against the baseline, whose steps vary; against each other they are."""
    baseline = sweep("fp32", [100.0, 200.0, 400.0], val_loss=LOSSES, peak_mib=500.0)
    one = sweep("amp_bf16", [80.0, 160.0, 320.0], val_loss=SAME, peak_mib=600.0)
    other = sweep("amp_fp16", [90.0, 180.5, 359.0], val_loss=SAME, peak_mib=600.0)
    assert beaten(baseline + one + other) == {"amp_fp16": Beaten(by="amp_bf16", worse_in=("time",))}


def test_an_arm_is_named_as_beaten_by_one_on_the_front():
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0)
    entries += sweep("pure_bf16", [50.0, 50.5, 49.5], val_loss=SAME, peak_mib=400.0)
    assert {one.by for one in beaten(entries).values()} == {"pure_bf16"}


def test_what_cannot_train_has_no_place_and_what_is_worse_has():
    entries = FP32 + sweep("pure_bf16", FAST, val_loss=WORSE, peak_mib=600.0)
    entries += [failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)]
    assert [one.arm for one in front(entries).arms] == ["fp32", "pure_bf16"]


def test_what_was_not_measured_counts_for_nothing():
    entries = sweep("fp32", [150.0, 153.0, 147.0], val_loss=None) + sweep("amp_bf16", FAST, val_loss=None)
    (fp32, bf16) = front(entries).arms
    assert (fp32.beaten.by, bf16.loss, bf16.loss_gap) == ("amp_bf16", "not measured", None)
    assert front(FP32) is None
