import numpy as np
import pytest
from synthetic_records import document, figures, run, workload

from ampsweep.analysis.time_to_loss import MetricSeries, loss_curves
from ampsweep.config.modes import arm_after
from ampsweep.records.sections import Attempt, BestEvaluation

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
            if logged is WAITED:
                entry[1].config["trainer"] = {**TRAINER["trainer"], "patience": 4}
                entry[1].best = BestEvaluation(metric="val/loss", step=120, value=1.8)
            entries.append(entry)
            curves[entry[0]] = loss_curves(entry[1], logged)
    return {arm.arm: arm.time_to_loss for arm in workload(entries, curves=curves).verdict.arms}


def time_of(arm, baseline, **more):
    arm, baseline = (of if isinstance(of, list) else [of] * 3 for of in (arm, baseline))
    return candidates(("fp32", baseline, lambda _: {}), ("amp_bf16", arm, lambda _: more))["amp_bf16"]


OFTEN = history(evaluate_every=40)
NOISY = [history(10.0, losses=1 + np.exp(-LOGGED / 50.0) - noise) for noise in (0.002, -0.002, 0.001)]
WAITED = history(evaluate_every=20, losses=np.where(LOGGED <= 120, 3 - LOGGED / 100, 2.5))  # best at step 120
STOPPED = {"cut_short": "after step 200", "stopped_early": True}
CASES = {
    "half the step time": time_of(history(5.0), history(10.0)),
    "learning sooner": time_of(history(10.0, decay=25.0), history(10.0, decay=50.0)),
    "noise within the margin": time_of(history(10.0), NOISY),
    "not as low in the end": time_of(history(5.0, decay=50.0), history(10.0, decay=25.0)),
    "too slow": time_of(history(30.0, decay=500.0), history(10.0)),
    "low for a single step": time_of(history(losses=np.where(LOGGED == 60, 0.5, 2.0)), history(decay=100.0)),
    "often evaluated": time_of(OFTEN, OFTEN),
    "seldom evaluated baseline": time_of(OFTEN, history(evaluate_every=100)),
    "contaminated": time_of(history(), history(), contamination={"verdict": "contaminated", "reasons": ["load"]}),
    "stopped early": time_of(WAITED, WAITED, **STOPPED),
    "cut short": time_of(history(), history(), cut_short="time"),
    "without history": workload([run("fp32"), run("amp_bf16")]).verdict.arms[0].time_to_loss,
}


def test_times_to_the_loss_of_the_baseline(golden):
    golden("times.md", document(times={name: "none" if of is None else figures(of) for name, of in CASES.items()}))
    assert 1.8 < CASES["half the step time"].baseline_s < 2.0, "200 steps of 10 ms, its warm-up as well"


def test_a_validation_curve_takes_five_finite_losses():
    assert "val/loss" not in loss_curves(run("fp32")[1], history(evaluate_every=50))
    broken = history(evaluate_every=10)
    broken["val/loss"].values[3] = np.nan
    assert len(loss_curves(run("fp32")[1], broken)["val/loss"].losses) == STEPS // 10 - 1


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


def test_warmup_is_that_of_each_process():
    logged, (_, record) = history(10.0), run("fp32", 0, step_ms=10.0, config=TRAINER)
    logged["perf/step_ms"].values[10:13] = 500.0  # of a process that went on from step 100
    record.attempts = [Attempt(from_step=0, warmup_steps=10), Attempt(from_step=100, warmup_steps=25)]
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0)
    record.attempts = [Attempt(from_step=0), Attempt(from_step=100)]  # of an earlier version
    assert loss_curves(record, logged)["train/loss"].seconds[-1] == pytest.approx(2.0 + 30 * 0.49)
