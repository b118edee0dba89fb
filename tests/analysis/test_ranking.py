"""The arm that is chosen by its step time, within the memory given."""

import pytest
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare
from ampsweep.record.parts import Float8Proof

STEPS = [100.0, 101.0, 99.0]
LOSSES = [2.0, 2.001, 2.002]


def recommended(*arms, memory_gib=None):
    entries = [entry for of_arm in arms for entry in of_arm]
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, memory_gib=memory_gib).workloads
    return workload.verdict.recommendation


def arm(name, factor=1.0, peak_mib=1000.0):
    return sweep(name, [factor * value for value in STEPS], val_loss=LOSSES, peak_mib=peak_mib)


FP32 = arm("fp32")


def test_an_arm_over_the_memory_given_is_refused_with_the_figure():
    small, large = arm("amp_bf16", 0.8, peak_mib=600.0), arm("amp_fp16", 0.5, peak_mib=900.0)
    assert recommended(FP32, small, large).arm == "amp_fp16"
    found = recommended(FP32, small, large, memory_gib=0.75)
    assert found.arm == "amp_bf16"
    over = found.standings[2].refusal
    assert (over.kind(), over.peak_bytes, over.limit_bytes) == ("over_memory", 900 * 2**20, 768 * 2**20)


def test_a_baseline_over_the_memory_given_is_only_compared_with():
    slower = arm("amp_bf16", 2.0, peak_mib=600.0)
    assert recommended(FP32, slower).arm == "fp32"
    found = recommended(FP32, slower, memory_gib=0.75)
    assert (found.arm, found.standings[0].standing) == ("amp_bf16", "refused")


def test_where_nothing_fits_nothing_is_recommended():
    found = recommended(FP32, arm("amp_bf16", 0.5), memory_gib=0.1)
    assert (found.arm, found.undecided.kind()) == (None, "nothing_fits")


def test_an_undecided_arm_that_alone_fits_is_waited_for():
    short = sweep("amp_bf16", STEPS[:2], val_loss=LOSSES[:2], peak_mib=50.0)
    found = recommended(FP32, short, memory_gib=0.1)
    assert (found.undecided.leader, [one.arm for one in found.undecided.missing]) == (None, ["amp_bf16"])


@pytest.mark.parametrize("peaks", [[600.0, 600.0, 800.0], [800.0] * 3])
def test_one_run_over_the_memory_given_is_enough(peaks):
    over = arm("amp_bf16", 0.5, peak_mib=peaks)
    assert recommended(FP32, over, memory_gib=0.75).standings[1].standing == "refused"


def test_an_emulated_arm_is_refused_and_not_waited_for():
    why = "a CPU multiplies no float8"
    proof = {"num_operators": 400, "float8": Float8Proof(emulated=why)}
    emulated = sweep("fp8_rowwise", [None] * 3, val_loss=[2.0] * 3, peak_mib=None, proof=proof)
    found = recommended(FP32, emulated)
    assert found.arm == "fp32"
    assert (found.standings[1].refusal.kind(), found.standings[1].refusal.cause) == ("emulated", why)
