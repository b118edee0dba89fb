"""The arm to train in: speed, memory and the memory given (`golden/verdicts.md` has refusals and undecided arms)."""

from synthetic_records import LOST_BITS, disproved, failed, sweep, workload

from ampsweep.analysis.candidates import ContradictsMode, Diverged, MostlyFailing
from ampsweep.analysis.recommendation import ArmStanding, NoBaseline, NoOtherArms

LOSSES, SAME = [2.00, 2.02, 1.98], [2.001, 2.019, 1.981]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)
FAST, FASTER = [100.0, 101.0, 99.0], [75.0, 76.0, 74.0]
GOOD = sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0)


def recommendation(entries, **options):
    return workload(entries, **options).verdict.recommendation


def test_the_faster_arm_that_learns_the_same_is_recommended():
    found = recommendation(FP32 + GOOD)
    assert (found.baseline, found.arm, found.undecided) == ("fp32", "amp_bf16", None)
    assert [(one.arm, one.standing) for one in found.standings] == [("fp32", "eligible"), ("amp_bf16", "recommended")]


def test_speed_decides_then_memory_then_the_order_of_arms():
    for times, peak_mib, chosen in (
        (FASTER, 700.0, "amp_fp16"),  # the fastest over one that saves more
        (FAST[::-1], 500.0, "amp_fp16"),  # of two as fast the one with less memory
        (FAST[::-1], 595.0, "amp_bf16"),  # by 2% at least, else the first
    ):
        assert recommendation(FP32 + GOOD + sweep("amp_fp16", times, val_loss=SAME, peak_mib=peak_mib)).arm == chosen


def test_refused_arms_name_their_cause_and_seeds():
    lost = [*sweep("tf32", FASTER[:2], val_loss=SAME), failed("tf32", 2, "diverged", "loss is nan")]
    worse = sweep("amp_fp16", FASTER, val_loss=[2.10, 2.12, 2.08])
    entries = FP32 + GOOD + lost + worse + [disproved("pure_bf16", seed) for seed in range(3)]
    found = recommendation(entries)
    refusals = {one.arm: one.refusal for one in found.standings if one.standing == "refused"}
    learned = refusals.pop("amp_fp16").parity
    assert (found.arm, learned.metric, learned.verdict) == ("amp_bf16", "val/loss", "worse")
    assert refusals == {
        "tf32": Diverged(cause="loss is nan", seeds=(2,)),
        "pure_bf16": ContradictsMode(cause=LOST_BITS, seeds=(0, 1, 2)),
    }


def test_without_two_arms_or_long_steps_nothing_is_recommended():
    assert recommendation(FP32, baseline="tf32").undecided == NoBaseline(baseline="tf32")
    assert recommendation(FP32).undecided == NoOtherArms(baseline="fp32")
    small = sweep("fp32", [6.0, 6.1, 5.9], val_loss=LOSSES) + sweep("amp_bf16", [4.0] * 3, val_loss=SAME)
    found = recommendation(small)
    assert (found.arm, found.undecided.small_step.num_operators) == (None, 400)
    assert found.standings[1].missing.kind() == "small_workload"
    found = recommendation([failed("fp32", seed, "oom") for seed in range(3)] + GOOD)
    expected = MostlyFailing(outcome="oom", num_such=3, num_runs=3, cause="")
    assert (found.arm, found.undecided.kind()) == (None, "baseline_refused")
    assert found.standings[0] == ArmStanding(arm="fp32", standing="refused", reason=expected.sentence, refusal=expected)


def test_arms_must_fit_into_the_memory_given():
    small = sweep("amp_bf16", [120.0, 121.0, 119.0], val_loss=SAME, peak_mib=600.0)
    large = sweep("amp_fp16", FAST, val_loss=SAME, peak_mib=[600.0, 700.0, 900.0])
    assert recommendation(FP32 + small + large).arm == "amp_fp16"
    found = recommendation(FP32 + small + large, memory_gib=0.75)
    over = found.standings[2].refusal
    assert (found.arm, over.kind()) == ("amp_bf16", "over_memory"), "one run over it is enough"
    assert (over.peak_bytes, over.limit_bytes) == (900 * 2**20, 768 * 2**20)
    slower = sweep("amp_bf16", [300.0, 303.0, 297.0], val_loss=SAME, peak_mib=600.0)
    assert recommendation(FP32 + slower).arm == "fp32"
    found = recommendation(FP32 + slower, memory_gib=0.75)
    assert (found.arm, found.standings[0].standing) == ("amp_bf16", "refused"), "the baseline is compared with only"
    found = recommendation(FP32 + GOOD, memory_gib=0.1)
    assert (found.arm, found.undecided.kind()) == (None, "nothing_fits")
    short = sweep("amp_bf16", FAST[:2], val_loss=SAME[:2], peak_mib=50.0)
    found = recommendation(FP32 + short, memory_gib=0.1)
    assert (found.undecided.leader, [one.arm for one in found.undecided.missing]) == (None, ["amp_bf16"])
