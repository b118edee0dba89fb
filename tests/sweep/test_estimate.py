"""The seconds of planned runs and searches, from a short run whose parts have known durations."""

import json
from types import SimpleNamespace

import pytest

from ampsweep.config.compose import compose_one
from ampsweep.launch.isolated_process import ChildError
from ampsweep.records.batch_search import PredictedBatch
from ampsweep.run import short_run as timed
from ampsweep.run.messages import Progress
from ampsweep.run.short_run import ShortRun, short_run
from ampsweep.search import largest_batch

MLP = ("model=mlp_small", "model.hidden_size=16", "data=digits", "device=cpu", "trainer.steps=8")
START_S, EVAL_S = 1.0, 0.5


@pytest.fixture
def short(monkeypatch):
    """Seconds of the steps of a short run, and how it ends."""
    short = SimpleNamespace(
        now_s=0.0, steps_s=[0.3, 0.6, 0.2, 0.1, 0.25], status="completed", has_times=True, trained=[]
    )

    def run(request, printer):
        trainer, steps_s = request.config.trainer, short.steps_s
        if len(steps_s) > 1:
            steps_s = [*steps_s, *[0.2] * (trainer.steps - len(steps_s))]
        num_evaluations = 1 + (len(steps_s) - 1) // trainer.eval_every
        short.now_s += START_S
        printer.on_message(Progress(step=0, num_steps=trainer.steps))
        short.now_s += sum(steps_s) + num_evaluations * EVAL_S
        short.trained.append(request.config)
        rows = [{"step": step, "perf/step_ms": 1000 * took_s} for step, took_s in enumerate(steps_s, 1)]
        rows = [row if short.has_times and row["step"] != 2 else {"step": row["step"]} for row in rows]  # 2: traced
        (request.directory / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return SimpleNamespace(status=short.status, arm="fp32", error="no such file")

    monkeypatch.setattr(timed, "run_in_own_process", run)
    monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: short.now_s))
    return short


REST_S = START_S + EVAL_S + sum((0.3, 0.6, 0.2, 0.1, 0.25)) - 5 * 0.2
"""What the first step and the traced one take beyond the median of the later ones is no part of a step."""


@pytest.mark.parametrize(
    ("overrides", "expected_s"),
    [
        ((), 8 * 0.2 + REST_S),  # with an evaluation at the end
        (("trainer.eval_every=4",), 8 * 0.2 + EVAL_S + REST_S),
        (("trainer.eval_every=3",), 8 * 0.2 + 2 * EVAL_S + REST_S),
        (("trainer.max_seconds=0.9",), 0.9 + REST_S),
        (("trainer.max_seconds=1.8", "trainer.eval_every=4"), 1.8 + REST_S),
    ],
)
def test_a_run_takes_its_start_its_steps_and_its_evaluations(short, overrides, expected_s):
    config = compose_one((*MLP, *overrides))
    assert short_run(config).seconds(config.trainer, 8) == pytest.approx(expected_s)
    assert {(config.trainer.steps, config.tracking.mode) for config in short.trained} == {(5, "disabled")}


def test_steps_without_times_are_told_by_a_longer_run(short):
    """As of a mode that is emulated here."""
    config = compose_one((*MLP, "trainer.steps=100"))
    short.has_times = False
    assert short_run(config).seconds(config.trainer, 100) == pytest.approx(100 * 0.2 + REST_S)
    short.steps_s = [9.0]
    assert short_run(config).seconds(config.trainer, 100) == pytest.approx(100 * (9.0 + EVAL_S) + START_S)


def test_a_slow_step_is_timed_once_and_a_run_without_an_end_is_no_estimate(short):
    config = compose_one(MLP)
    short.steps_s = [10.0]
    assert short_run(config).seconds(config.trainer, 8) == pytest.approx(8 * 10.0 + START_S + EVAL_S)
    short.status = "oom"
    assert short_run(config) is None
    short.status = "failed"
    with pytest.raises(ChildError, match="fp32 failed: no such file"):
        short_run(config)


def test_a_search_takes_two_probes_at_the_predicted_batch_and_its_training(monkeypatch):
    asked, config = [], compose_one((*MLP, "max_batch.search=true", "trainer.memory_limit_gib=1"))
    monkeypatch.setattr(
        largest_batch, "short_run", lambda config: asked.append(config) or ShortRun(step_s=0.2, start_s=0.5, rest_s=2.0)
    )
    monkeypatch.setattr(largest_batch, "_predicted", lambda config: PredictedBatch(batch_size=83))
    assert largest_batch.search_seconds(config, 8) == pytest.approx(2 * 0.5 + 7 * 0.2 + 8 * 0.2 + 2.0, abs=0.1)
    (at_largest,) = asked
    assert (at_largest.data["batch_size"], at_largest.max_batch.search) == (83, False)
    assert at_largest.trainer.memory_limit_gib is None, "which would slow the steps of a CPU, but not the training's"
    monkeypatch.setattr(largest_batch, "_predicted", lambda config: PredictedBatch(refused="an operator is unknown"))
    assert largest_batch.search_seconds(config, 8) is None
