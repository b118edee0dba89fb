"""The cost that arms are ranked by: that up to the loss where it is known of all in question, else that of a step."""

import pytest
from synthetic_records import contaminated, run, sweep
from ways_to_loss import ways

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.costs import Goal, PassedOver
from ampsweep.record.parts import Float8Proof

STEPS = [100.0, 101.0, 99.0]
TIMES = [10.0, 10.1, 9.9]


def recommended(*arms, **goal):
    entries = [entry for of_arm, _ in arms for entry in of_arm]
    curves = {directory: curve for _, of_arm in arms for directory, curve in of_arm.items()}
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, curves=curves, goal=Goal(**goal)).workloads
    return workload.verdict.recommendation


def scaled(values, factor):
    return [factor * value for value in values]


FP32 = ways("fp32", STEPS, seconds=TIMES)
SLOW_STEPS_SOONER = ways("amp_bf16", scaled(STEPS, 1.2), seconds=scaled(TIMES, 0.8))
FAST_STEPS_LATER = ways("amp_fp16", scaled(STEPS, 0.6), seconds=scaled(TIMES, 1.5))


def test_an_arm_of_slower_steps_that_is_at_the_loss_sooner_wins():
    found = recommended(FP32, SLOW_STEPS_SOONER)
    assert (found.arm, found.ranking.cost, found.ranking.metric) == ("amp_bf16", "time to loss", "val/loss")


def test_an_arm_of_faster_steps_that_needs_more_of_them_loses():
    assert recommended(FP32, FAST_STEPS_LATER).arm == "fp32"
    assert recommended(FP32, SLOW_STEPS_SOONER, FAST_STEPS_LATER).arm == "amp_bf16"
    without_curves = [(entries, {}) for entries, _ in (FP32, SLOW_STEPS_SOONER, FAST_STEPS_LATER)]
    assert recommended(*without_curves).arm == "amp_fp16", "where steps alone are known"


def test_at_the_loss_as_soon_the_one_of_less_memory_wins():
    small = ways("amp_fp16", STEPS, seconds=scaled(TIMES, 0.8)[::-1], peak_mib=500.0)
    assert recommended(FP32, SLOW_STEPS_SOONER, small).arm == "amp_fp16"


def passed_over(*arms, **goal):
    found = recommended(*arms, **goal)
    assert found.ranking.cost in ("step time", "energy of a sample")
    return found.ranking.passed_over


def test_without_curves_of_every_arm_in_question_steps_decide():
    other = (sweep("tf32", scaled(STEPS, 0.9), val_loss=[2.0, 2.001, 2.002]), {})
    assert passed_over(FP32, SLOW_STEPS_SOONER, other) == (PassedOver(why="no curves", arms=("tf32",)),)


def test_where_a_rival_missed_the_loss_steps_decide():
    """It ends at a loss within the margin, but for one seed: what its curve reaches is above the target."""
    missed = ways("amp_bf16", STEPS, seconds=scaled(TIMES, 0.5), final=2.019)
    missed[1][missed[0][2][0]]["val/loss"].losses[-1] = 2.05
    assert passed_over(FP32, missed) == (PassedOver(why="not reached", arms=("amp_bf16",)),)


def test_missing_the_loss_in_more_time_stands_in_no_way():
    missed = ways("amp_fp16", STEPS, seconds=scaled(TIMES, 2.0), final=2.019)
    missed[1][missed[0][2][0]]["val/loss"].losses[-1] = 2.05
    found = recommended(FP32, SLOW_STEPS_SOONER, missed)
    assert (found.arm, found.ranking.cost) == ("amp_bf16", "time to loss")
    assert [one.standing for one in found.standings] == ["eligible", "recommended", "eligible"]


def test_a_time_that_is_hardly_known_decides_nothing():
    noisy = ways("amp_bf16", scaled(STEPS, 0.9), seconds=[4.0, 20.0, 9.0])
    assert passed_over(FP32, noisy) == (PassedOver(why="too noisy", arms=("amp_bf16",)),)


def test_refused_arms_and_short_ones_have_no_say():
    worse = ways("pure_bf16", STEPS, seconds=TIMES, final=2.5)
    short = (sweep("tf32", STEPS[:2], val_loss=[2.0, 2.001]), {})
    assert recommended(FP32, SLOW_STEPS_SOONER, worse, short).ranking.cost == "time to loss"


THRIFTY = ways("amp_bf16", scaled(STEPS, 1.3), seconds=scaled(TIMES, 1.3), watts=100.0)
HUNGRY = ways("amp_fp16", scaled(STEPS, 0.7), seconds=scaled(TIMES, 0.7), watts=400.0)
COUNTED = ways("fp32", STEPS, seconds=TIMES, watts=200.0)


def test_least_energy_chooses_another_arm_than_least_time():
    assert recommended(COUNTED, THRIFTY, HUNGRY).arm == "amp_fp16"
    found = recommended(COUNTED, THRIFTY, HUNGRY, objective="energy")
    assert (found.arm, found.ranking.cost) == ("amp_bf16", "energy to loss")


def test_without_counted_energy_nothing_is_recommended_by_it():
    found = recommended(FP32, SLOW_STEPS_SOONER, objective="energy")
    assert (found.arm, found.undecided.kind()) == (None, "no_energy")


def test_energy_of_a_sample_decides_without_that_to_the_loss():
    entries = []
    for arm, joules in (("fp32", 2.0), ("amp_bf16", 1.0)):
        for seed in range(3):
            directory, record = run(arm, seed, step_ms=STEPS[seed])
            record.summary["device/energy_per_sample_j"] = joules + 0.01 * seed
            entries.append((directory, record))
    found = recommended((entries, {}), objective="energy")
    assert (found.arm, found.ranking.cost) == ("amp_bf16", "energy of a sample")


def test_an_arm_over_the_memory_given_is_refused_with_the_figure():
    small = ways("amp_bf16", scaled(STEPS, 0.8), seconds=scaled(TIMES, 0.8), peak_mib=600.0)
    large = ways("amp_fp16", scaled(STEPS, 0.5), seconds=scaled(TIMES, 0.5), peak_mib=900.0)
    assert recommended(FP32, small, large).arm == "amp_fp16"
    found = recommended(FP32, small, large, memory_gib=0.75)
    assert found.arm == "amp_bf16"
    over = found.standings[2].refusal
    assert (over.kind(), over.peak_bytes, over.limit_bytes) == ("over_memory", 900 * 2**20, 768 * 2**20)


def test_a_baseline_over_the_memory_given_is_only_compared_with():
    slower = ways("amp_bf16", scaled(STEPS, 2.0), seconds=scaled(TIMES, 2.0), peak_mib=600.0)
    assert recommended(FP32, slower).arm == "fp32"
    found = recommended(FP32, slower, memory_gib=0.75)
    assert (found.arm, found.standings[0].standing) == ("amp_bf16", "refused")


def test_where_nothing_fits_nothing_is_recommended():
    found = recommended(FP32, SLOW_STEPS_SOONER, memory_gib=0.1)
    assert (found.arm, found.undecided.kind()) == (None, "nothing_fits")


def test_an_undecided_arm_that_alone_fits_is_waited_for():
    short = (sweep("amp_bf16", STEPS[:2], val_loss=[2.0, 2.001], peak_mib=50.0), {})
    found = recommended(FP32, short, memory_gib=0.1)
    assert (found.undecided.leader, [one.arm for one in found.undecided.missing]) == (None, ["amp_bf16"])


@pytest.mark.parametrize("peaks", [[600.0, 600.0, 800.0], [800.0] * 3])
def test_one_run_over_the_memory_given_is_enough(peaks):
    arm = sweep("amp_bf16", scaled(STEPS, 0.5), val_loss=[2.0, 2.001, 2.002], peak_mib=peaks)
    assert recommended(FP32, (arm, {}), memory_gib=0.75).standings[1].standing == "refused"


def test_an_emulated_arm_is_refused_and_not_waited_for():
    why = "a CPU multiplies no float8"
    proof = {"num_operators": 400, "float8": Float8Proof(emulated=why)}
    arm = sweep("fp8_rowwise", [None] * 3, val_loss=[2.0] * 3, peak_mib=None, proof=proof)
    found = recommended(FP32, (arm, {}))
    assert found.arm == "fp32"
    assert (found.standings[1].refusal.kind(), found.standings[1].refusal.cause) == ("emulated", why)


def test_contaminated_runs_have_no_time_to_the_loss():
    entries, curves = SLOW_STEPS_SOONER
    busy = [contaminated("amp_bf16", seed, val_loss=2.0 + 0.001 * seed) for seed in range(3)]
    assert [directory for directory, _ in busy] == [directory for directory, _ in entries]
    assert recommended(FP32, (busy, curves)).ranking.passed_over == (PassedOver(why="no curves", arms=("amp_bf16",)),)
