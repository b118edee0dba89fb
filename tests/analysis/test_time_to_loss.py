from dataclasses import dataclass

import numpy as np
import pytest
from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.time_to_loss import LossCurve, loss_curves
from ampsweep.config.modes import arm_after
from ampsweep.record.parts import Attempt

STEPS = 200


@dataclass
class Logged:
    steps: np.ndarray
    values: np.ndarray


def history(step_ms=10.0, decay=50.0, evaluate_every=None, losses=None):
    """What a run logs every tenth step while its loss decays exponentially to 1, a step of `step_ms` after another."""
    steps = np.arange(10.0, STEPS + 1, 10.0)
    times = np.full(steps.size, step_ms)
    times[0] = 50 * step_ms  # a compilation, say
    curve = 1 + np.exp(-steps / decay) if losses is None else losses
    logged = {"perf/step_ms": Logged(steps, times), "train/loss": Logged(steps, curve)}
    if evaluate_every:
        due = steps % evaluate_every == 0
        logged["val/loss"] = Logged(steps[due], curve[due])
    return logged


def verdict_on(arm_histories, baseline_histories, **arm):
    entries, curves = [], {}
    for name, histories, more in (("fp32", baseline_histories, {}), ("amp_bf16", arm_histories, arm)):
        for seed, logged in enumerate(histories):
            step_ms = float(logged["perf/step_ms"].values[-1])
            entry = run(name, seed, step_ms=step_ms, config={"trainer": {"warmup_steps": 10}}, **more)
            entries.append(entry)
            curves[entry[0]] = loss_curves(entry[1], logged)
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, curves=curves).workloads
    return workload.verdict.arms[0].time_to_loss


def test_shorter_steps_that_learn_the_same_are_sooner_by_that():
    found = verdict_on([history(5.0)] * 3, [history(10.0)] * 3)
    assert found.speedup.value == pytest.approx(2.0)
    assert (found.n, found.num_reached) == (3, 3)
    final = loss_curves(run("fp32", step_ms=10.0)[1], history(10.0))["train/loss"].final
    assert found.target == pytest.approx(1.01 * final)
    assert 1.8 < found.baseline_s < 2.0, "200 steps of 10 ms, warm-up as later steps, until the margin is reached"
    assert found.arm_s == pytest.approx(found.baseline_s / 2)


@pytest.mark.parametrize("saved_in", ["fp32", "amp_bf16"])
def test_a_part_of_a_training_has_no_time_to_a_loss(saved_in):
    entries, curves = [], {}
    for seed in range(3):
        steps = np.arange(151.0, STEPS + 1)
        rest = {"perf/step_ms": Logged(steps, np.ones(50)), "train/loss": Logged(steps, 1 + np.exp(-steps / 50))}
        arm = arm_after("amp_bf16", saved_in, 150)
        attempt = {"from_step": 150, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "warmup_steps": 0}
        for name, logged, more in (
            ("fp32", history(10.0), {}),
            ("amp_bf16", history(5.0), {}),
            (arm, rest, {"attempts": [attempt], "directory": f"resumed-{seed}"}),
        ):
            step_ms = float(logged["perf/step_ms"].values[-1])
            entry = run(name, seed, step_ms=step_ms, config={"trainer": {"warmup_steps": 10}}, **more)
            entries.append(entry)
            curves[entry[0]] = loss_curves(entry[1], logged)
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, curves=curves).workloads
    found = {arm.arm: arm.time_to_loss for arm in workload.verdict.arms}
    assert found.pop("amp_bf16").speedup.value == pytest.approx(2.0), "of the whole runs alone"
    assert [*found.values()] == [None] * (saved_in != "amp_bf16")


def test_faster_steps_that_learn_less_each_can_be_no_sooner():
    found = verdict_on([history(5.0, decay=50.0)] * 3, [history(10.0, decay=25.0)] * 3)
    assert found.num_reached == 0
    assert found.speedup is None
    assert found.arm_s is None


def test_an_arm_that_learns_more_a_step_is_sooner():
    assert verdict_on([history(10.0, decay=25.0)] * 3, [history(10.0, decay=50.0)] * 3).speedup.value > 1.4


def test_often_evaluated_runs_go_by_their_validation_loss():
    assert verdict_on([history(evaluate_every=40)] * 3, [history(evaluate_every=40)] * 3).metric == "val/loss"
    assert verdict_on([history(evaluate_every=40)] * 3, [history(evaluate_every=100)] * 3).metric == "train/loss"


def test_an_arm_as_good_but_for_noise_reaches_the_loss():
    noise = [0.002, -0.002, 0.001]
    baseline = [history(10.0, losses=1 + np.exp(-np.arange(10.0, STEPS + 1, 10.0) / 50.0) - one) for one in noise]
    assert verdict_on([history(10.0)] * 3, baseline).num_reached == 3


def test_an_arm_that_misses_the_loss_is_known_by_its_whole_run():
    found = verdict_on([history(30.0, decay=500.0)] * 3, [history(10.0)] * 3)
    assert found.num_reached == 0


def test_a_single_lucky_batch_reaches_nothing():
    lucky = 2.0 + np.zeros(STEPS // 10)
    lucky[5] = 0.5
    assert verdict_on([history(losses=lucky)] * 3, [history(decay=100.0)] * 3).num_reached == 0


def test_contaminated_runs_and_those_cut_short_tell_no_time():
    load = {"verdict": "contaminated", "reasons": ["load"]}
    assert verdict_on([history()] * 3, [history()] * 3, contamination=load) is None
    assert verdict_on([history()] * 3, [history()] * 3, cut_short="time") is None


def test_without_histories_there_is_nothing_to_tell():
    (workload,) = compare([run("fp32"), run("amp_bf16")], baseline="fp32", margin_pct=1.0).workloads
    assert workload.verdict.arms[0].time_to_loss is None


def test_a_loss_between_two_moments_is_reached_between_them():
    curve = LossCurve(losses=np.array([4.0, 2.0]), seconds=np.array([10.0, 20.0]))
    assert curve.reach(3.0) == 15.0
    assert curve.reach(4.0) == 10.0
    assert curve.reach(1.9) is None


def test_losses_that_are_no_numbers_are_left_out():
    broken = history(evaluate_every=10)
    broken["val/loss"].values[3] = np.nan
    assert len(loss_curves(run("fp32")[1], broken)["val/loss"].losses) == STEPS // 10 - 1


def test_few_losses_make_no_curve():
    few = history(evaluate_every=50)
    assert "val/loss" not in loss_curves(run("fp32")[1], few)


def test_warmup_is_that_of_each_process():
    logged, (_, record) = history(10.0), run("fp32", 0, step_ms=10.0, config={"trainer": {"warmup_steps": 10}})
    logged["perf/step_ms"].values[10:13] = 500.0  # of a process that went on from step 100
    record.attempts = [Attempt(from_step=0, warmup_steps=10), Attempt(from_step=100, warmup_steps=25)]
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0)
    record.attempts = [Attempt(from_step=0), Attempt(from_step=100)]  # of an earlier version
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0 + 30 * 0.49)
