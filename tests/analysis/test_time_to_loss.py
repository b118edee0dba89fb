import numpy as np
import pytest
from synthetic_records import run, workload

from ampsweep.analysis.time_to_loss import LossCurve, MetricSeries, loss_curves
from ampsweep.config.modes import arm_after
from ampsweep.record.sections import Attempt

STEPS = 200
LOGGED = np.arange(10.0, STEPS + 1, 10.0)
TRAINER = {"trainer": {"warmup_steps": 10}}


def history(step_ms=10.0, decay=50.0, evaluate_every=None, losses=None):
    """What a run logs every tenth step while its loss decays exponentially to 1, a step of `step_ms` after another."""
    times = np.full(LOGGED.size, step_ms)
    times[0] = 50 * step_ms  # a compilation, say
    curve = 1 + np.exp(-LOGGED / decay) if losses is None else losses
    logged = {"perf/step_ms": MetricSeries(LOGGED, times), "train/loss": MetricSeries(LOGGED, curve)}
    if evaluate_every:
        due = LOGGED % evaluate_every == 0
        logged["val/loss"] = MetricSeries(LOGGED[due], curve[due])
    return logged


def candidates(*of):
    entries, curves = [], {}
    for name, histories, more in of:
        for seed, logged in enumerate(histories):
            entry = run(name, seed, step_ms=float(logged["perf/step_ms"].values[-1]), config=TRAINER, **more(seed))
            entries.append(entry)
            curves[entry[0]] = loss_curves(entry[1], logged)
    return {arm.arm: arm.time_to_loss for arm in workload(entries, curves=curves).verdict.arms}


def time_of(arm, baseline, **more):
    arm, baseline = (of if isinstance(of, list) else [of] * 3 for of in (arm, baseline))
    return candidates(("fp32", baseline, lambda _: {}), ("amp_bf16", arm, lambda _: more))["amp_bf16"]


def test_shorter_steps_that_learn_the_same_are_sooner_by_that():
    found = time_of(history(5.0), history(10.0))
    assert (found.speedup.value, found.n, found.num_reached) == (pytest.approx(2.0), 3, 3)
    final = loss_curves(run("fp32", step_ms=10.0)[1], history(10.0))["train/loss"].final
    assert found.target == pytest.approx(1.01 * final)
    assert 1.8 < found.baseline_s < 2.0, "200 steps of 10 ms, warm-up as later steps, until the margin is reached"
    assert found.arm_s == pytest.approx(found.baseline_s / 2)


@pytest.mark.parametrize("saved_in", ["fp32", "amp_bf16"])
def test_a_part_of_a_training_has_no_time_to_a_loss(saved_in):
    steps = np.arange(151.0, STEPS + 1)
    losses = MetricSeries(steps, 1 + np.exp(-steps / 50))
    rest = {"perf/step_ms": MetricSeries(steps, np.ones(50)), "train/loss": losses}

    def resumed(seed):
        attempt = {"from_step": 150, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "warmup_steps": 0}
        return {"attempts": [attempt], "directory": f"resumed-{seed}"}

    whole = [("fp32", [history(10.0)] * 3, lambda _: {}), ("amp_bf16", [history(5.0)] * 3, lambda _: {})]
    found = candidates(*whole, (arm_after("amp_bf16", saved_in, 150), [rest] * 3, resumed))
    assert found.pop("amp_bf16").speedup.value == pytest.approx(2.0), "of the whole runs alone"
    assert [*found.values()] == [None] * (saved_in != "amp_bf16")


def test_an_arm_that_misses_the_loss_has_no_time():
    for arm, baseline in (
        (history(5.0, decay=50.0), history(10.0, decay=25.0)),
        (history(30.0, decay=500.0), history(10.0)),
        (history(losses=np.where(LOGGED == 60, 0.5, 2.0)), history(decay=100.0)),
    ):
        found = time_of(arm, baseline)
        assert (found.num_reached, found.speedup, found.arm_s) == (0, None, None)


def test_the_time_to_a_loss_is_interpolated_and_up_to_the_noise():
    assert time_of(history(10.0, decay=25.0), history(10.0, decay=50.0)).speedup.value > 1.4
    curve = LossCurve(losses=np.array([4.0, 2.0]), seconds=np.array([10.0, 20.0]))
    assert [curve.reach(loss) for loss in (3.0, 4.0, 1.9)] == [15.0, 10.0, None]
    noisy = [history(10.0, losses=1 + np.exp(-LOGGED / 50.0) - noise) for noise in (0.002, -0.002, 0.001)]
    assert time_of(history(10.0), noisy).num_reached == 3


def test_often_evaluated_runs_go_by_their_validation_loss():
    often = history(evaluate_every=40)
    assert time_of(often, often).metric == "val/loss"
    assert time_of(often, history(evaluate_every=100)).metric == "train/loss"
    assert "val/loss" not in loss_curves(run("fp32")[1], history(evaluate_every=50))
    broken = history(evaluate_every=10)
    broken["val/loss"].values[3] = np.nan
    assert len(loss_curves(run("fp32")[1], broken)["val/loss"].losses) == STEPS // 10 - 1


def test_disturbed_runs_and_runs_without_history_have_no_time():
    assert time_of(history(), history(), contamination={"verdict": "contaminated", "reasons": ["load"]}) is None
    assert time_of(history(), history(), cut_short="time") is None
    assert workload([run("fp32"), run("amp_bf16")]).verdict.arms[0].time_to_loss is None


def test_warmup_is_that_of_each_process():
    logged, (_, record) = history(10.0), run("fp32", 0, step_ms=10.0, config=TRAINER)
    logged["perf/step_ms"].values[10:13] = 500.0  # of a process that went on from step 100
    record.attempts = [Attempt(from_step=0, warmup_steps=10), Attempt(from_step=100, warmup_steps=25)]
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0)
    record.attempts = [Attempt(from_step=0), Attempt(from_step=100)]  # of an earlier version
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0 + 30 * 0.49)
