import pytest
from synthetic_records import LOST_BITS, contaminated, disproved, failed, run, sweep

from ampsweep.analysis.candidates import ContradictsMode, Diverged, MostlyFailing, Unsupported
from ampsweep.analysis.comparison import compare
from ampsweep.analysis.recommendation import ArmStanding, NoBaseline, NoOtherArms

LOSSES = [2.00, 2.02, 1.98]
SAME = [2.001, 2.019, 1.981]
WORSE = [2.10, 2.12, 2.08]
OPEN = [2.02, 2.005, 2.0]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)
FAST = [100.0, 101.0, 99.0]
FASTER = [75.0, 76.0, 74.0]


def recommendation(entries, baseline="fp32"):
    (workload,) = compare(entries, baseline=baseline, margin_pct=1.0).workloads
    return workload.verdict.recommendation


def standings(entries):
    return {one.arm: one for one in recommendation(entries).standings}


def refusal(entries, arm):
    one = standings(entries)[arm]
    assert one.standing == "refused"
    return one.refusal


def test_the_faster_arm_that_learns_the_same_is_recommended():
    found = recommendation(FP32 + sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0))
    assert (found.baseline, found.arm, found.undecided) == ("fp32", "amp_bf16", None)
    assert [(one.arm, one.standing) for one in found.standings] == [("fp32", "eligible"), ("amp_bf16", "recommended")]


def test_the_fastest_is_recommended_over_one_that_saves_more():
    entries = FP32 + sweep("amp_bf16", FASTER, val_loss=SAME, peak_mib=700.0)
    assert recommendation(entries + sweep("amp_fp16", FAST, val_loss=SAME, peak_mib=500.0)).arm == "amp_bf16"


def test_of_arms_as_fast_memory_then_the_order_of_arms_decides():
    first = FP32 + sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=700.0)
    assert recommendation(first + sweep("amp_fp16", FAST[::-1], val_loss=SAME, peak_mib=600.0)).arm == "amp_fp16"
    assert recommendation(first + sweep("amp_fp16", FAST[::-1], val_loss=SAME, peak_mib=695.0)).arm == "amp_bf16"


def test_a_faster_arm_that_learns_worse_is_refused():
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME) + sweep("amp_fp16", FASTER, val_loss=WORSE)
    assert recommendation(entries).arm == "amp_bf16"
    worse = refusal(entries, "amp_fp16")
    assert (worse.kind(), worse.parity.metric, worse.parity.verdict) == ("worse", "val/loss", "worse")


def test_an_arm_that_diverged_is_refused_with_its_seed():
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME) + sweep("amp_fp16", FASTER[:2], val_loss=SAME)
    entries.append(failed("amp_fp16", 2, "diverged", "the scale collapsed to 2.9e-08 at step 41"))
    cause = "the scale collapsed to 2.9e-08 at step 41"
    assert refusal(entries, "amp_fp16") == Diverged(cause=cause, seeds=(2,))
    assert recommendation(entries).arm == "amp_bf16"


def test_the_first_cause_of_divergence_is_named():
    errors = ["the training loss is nan at step 10", "the training loss is nan at step 5"]
    diverged = [failed("amp_fp16", seed, "diverged", errors[seed == 2]) for seed in range(3)]
    found = refusal([*FP32, *diverged], "amp_fp16")
    assert found == Diverged(cause=errors[0], seeds=(0, 1, 2))


def test_where_the_baseline_diverges_too_nothing_is_refused():
    entries = [
        *FP32[:2],
        failed("fp32", 2, "diverged"),
        *sweep("amp_bf16", FAST[:2]),
        failed("amp_bf16", 2, "diverged"),
    ]
    assert standings(entries)["amp_bf16"].missing.kind() == "too_few_pairs"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (
            [failed("tf32", seed, "unsupported", "no TF32 here.") for seed in range(3)],
            Unsupported(),
        ),
        ([disproved("tf32", seed) for seed in range(3)], ContradictsMode(cause=LOST_BITS, seeds=(0, 1, 2))),
        (
            [failed("tf32", seed, "oom") for seed in range(2)] + [run("tf32", 2)],
            MostlyFailing(outcome="oom", num_such=2, num_runs=3, cause=""),
        ),
        (
            [failed("tf32", seed, "failed", "KeyError: x") for seed in range(3)],
            MostlyFailing(outcome="failed", num_such=3, num_runs=3, cause="KeyError: x"),
        ),
    ],
)
def test_what_does_not_run_is_refused_and_another_recommended(broken, expected):
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME) + broken
    assert refusal(entries, "tf32") == expected
    assert recommendation(entries).arm == "amp_bf16"


def test_slower_arms_leave_the_baseline_recommended():
    found = recommendation(FP32 + sweep("amp_fp16", [300.0, 303.0, 297.0], val_loss=SAME, peak_mib=600.0))
    assert found.arm == "fp32"
    assert [(one.arm, one.standing) for one in found.standings] == [("fp32", "recommended"), ("amp_fp16", "eligible")]


def test_a_faster_arm_with_open_parity_is_not_decidable():
    found = recommendation(FP32 + sweep("amp_bf16", FAST, val_loss=OPEN))
    assert found.arm is None
    assert (found.undecided.leader, [one.arm for one in found.undecided.missing]) == ("fp32", ["amp_bf16"])
    assert found.standings[1].missing.kind() == "parity_open"


def test_an_arm_that_may_be_better_but_not_worse_is_chosen():
    found = recommendation(FP32 + sweep("amp_bf16", FAST, val_loss=[1.99, 1.99, 1.96]))
    assert found.arm == "amp_bf16"


def test_a_slower_arm_with_open_parity_keeps_nobody_waiting():
    entries = FP32 + sweep("amp_bf16", FAST, val_loss=SAME) + sweep("amp_fp16", [400.0, 404.0, 396.0], val_loss=OPEN)
    assert recommendation(entries).arm == "amp_bf16"
    assert standings(entries)["amp_fp16"].missing.kind() == "parity_open"


def test_an_arm_short_of_pairs_waits_only_while_none_is_better():
    short = sweep("amp_fp16", FASTER[:2], val_loss=SAME[:2])
    assert recommendation(FP32 + short).arm is None
    assert standings(FP32 + short)["amp_fp16"].missing.kind() == "too_few_pairs"
    assert recommendation(FP32 + short + sweep("amp_bf16", FAST, val_loss=SAME)).arm == "amp_bf16"


def test_a_hopelessly_slow_arm_cut_short_is_not_waited_for():
    slow = sweep("amp_fp16", [1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20 reached")
    assert recommendation(FP32 + slow).arm == "fp32"


def test_speed_that_is_hardly_known_is_not_guessed():
    entries = FP32 + sweep("amp_bf16", [60.0, 190.0, 110.0], val_loss=SAME, peak_mib=500.0)
    found = recommendation(entries)
    assert found.arm is None
    assert found.undecided.missing == (found.standings[1].missing,)
    assert found.standings[1].missing.kind() == "speed_not_known"


def test_contaminated_runs_leave_speed_open():
    entries = FP32 + [contaminated("amp_bf16", seed, val_loss=SAME[seed]) for seed in range(3)]
    assert recommendation(entries).arm is None
    assert standings(entries)["amp_bf16"].missing.kind() == "speed_not_known"


def test_too_small_a_workload_decides_nothing():
    entries = sweep("fp32", [6.0, 6.1, 5.9], val_loss=LOSSES) + sweep(
        "amp_bf16", [4.0] * 3, val_loss=SAME, peak_mib=600.0
    )
    found = recommendation(entries)
    assert found.arm is None
    assert found.undecided.small_step.num_operators == 400
    assert found.standings[1].missing.kind() == "small_workload"


def test_a_baseline_that_does_not_run_is_no_yardstick():
    entries = [failed("fp32", seed, "oom") for seed in range(3)] + sweep("amp_bf16", FAST)
    found = recommendation(entries)
    assert found.arm is None
    assert found.undecided.kind() == "baseline_refused"
    expected = MostlyFailing(outcome="oom", num_such=3, num_runs=3, cause="")
    assert found.standings[0] == ArmStanding(arm="fp32", standing="refused", reason=expected.sentence, refusal=expected)


def test_one_bad_run_of_the_baseline_refuses_nothing():
    entries = [*FP32, failed("fp32", 3, "diverged", "nan"), *sweep("amp_bf16", FAST, val_loss=SAME)]
    assert recommendation(entries).arm == "amp_bf16"


def test_without_two_arms_nothing_is_recommended():
    assert recommendation(FP32, baseline="tf32").undecided == NoBaseline(baseline="tf32")
    assert recommendation(FP32).undecided == NoOtherArms(baseline="fp32")


def test_without_a_validation_loss_nothing_is_recommended():
    entries = sweep("fp32", [150.0, 153.0, 147.0], val_loss=None) + sweep("amp_bf16", FAST, val_loss=None)
    assert recommendation(entries).arm is None
    assert standings(entries)["amp_bf16"].missing.kind() == "no_final_loss"
