from synthetic_records import failed, sweep, workload

from ampsweep.analysis.pareto_front import Beaten

SAME, WORSE, BETTER = [2.001, 2.019, 1.981], [2.10, 2.12, 2.08], [1.90, 1.92, 1.88]
LOSSES, OPEN = [2.00, 2.02, 1.98], [2.08, 1.95, 2.0]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)
FAST, SLOW = [100.0, 101.0, 99.0], [200.0, 201.0, 199.0]


def front(entries):
    return workload(entries).verdict.front


def beaten(entries):
    return {one.arm: one.beaten for one in front(entries).arms if one.beaten is not None}


def bf16(times, losses, peak_mib):
    return sweep("amp_bf16", times, val_loss=losses, peak_mib=peak_mib)


def test_an_arm_better_somewhere_and_worse_nowhere_beats():
    for arm, expected in (
        (bf16(FAST, SAME, 600.0), {"fp32": Beaten(by="amp_bf16", worse_in=("time", "memory"))}),
        (bf16(SLOW, WORSE, 1100.0), {"amp_bf16": Beaten(by="fp32", worse_in=("time", "memory", "loss"))}),
        (bf16(FAST, SAME, 1100.0), {}),
        (bf16(FAST, WORSE, 600.0), {}),
        (bf16(SLOW, BETTER, 1100.0), {}),
        (bf16([151.0, 154.0, 148.0], SAME, 990.0), {}),
        (bf16([151.0, 154.0, 148.0], SAME, 900.0), {"fp32": Beaten(by="amp_bf16", worse_in=("memory",))}),
        (bf16(FAST, OPEN, 600.0), {}),
        (bf16([60.0, 290.0, 150.0], SAME, 600.0), {}),
        (bf16(FAST[:2], SAME[:2], 600.0), {}),
    ):
        assert beaten(FP32 + arm) == expected


def test_other_arms_are_held_against_each_other_by_their_pairs():
    """Both are hardly known against the baseline, whose steps vary; against each other they are."""
    baseline = sweep("fp32", [100.0, 200.0, 400.0], val_loss=LOSSES, peak_mib=500.0)
    other = sweep("amp_fp16", [90.0, 180.5, 359.0], val_loss=SAME, peak_mib=600.0)
    found = beaten(baseline + bf16([80.0, 160.0, 320.0], SAME, 600.0) + other)
    assert found == {"amp_fp16": Beaten(by="amp_bf16", worse_in=("time",))}


def test_beaten_arms_name_one_on_the_front_if_they_can_train():
    entries = FP32 + bf16(FAST, SAME, 600.0) + sweep("pure_bf16", [50.0, 50.5, 49.5], val_loss=SAME, peak_mib=400.0)
    assert {one.by for one in beaten(entries).values()} == {"pure_bf16"}
    assert front(entries).sentence == (
        "on the front: pure_bf16; beaten: fp32, amp_bf16 by pure_bf16 (slower and more memory)"
    )
    entries = FP32 + sweep("pure_bf16", FAST, val_loss=WORSE, peak_mib=600.0)
    entries += [failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)]
    assert [one.arm for one in front(entries).arms] == ["fp32", "pure_bf16"]
    entries = sweep("fp32", [150.0, 153.0, 147.0], val_loss=None) + sweep("amp_bf16", FAST, val_loss=None)
    (fp32, arm) = front(entries).arms
    assert (fp32.beaten.by, arm.loss, arm.loss_gap) == ("amp_bf16", "not measured", None)
    assert front(FP32) is None
