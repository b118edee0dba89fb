"""Runs and sweeps in float8, emulated on the CPU: what is told of them, and what is not."""

import json

import pytest
from command_line import all_runs, only_run, only_sweep

FLOAT8 = ("model=mlp_small", "model.hidden_size=32", "data=digits", "tracking=disabled", "device=cpu")
OF_PROCESS = ("perf/", "memory/", "device/", "instrumentation/")


@pytest.fixture(scope="module")
def sweep_arguments():
    return (
        *FLOAT8,
        "-m",
        "precision=amp_bf16,fp8_tensorwise",
        "seed=0,1,2",
        "trainer.steps=12",
        "report.baseline=amp_bf16",
    )


def test_an_emulated_arm_is_compared_by_its_loss_only(train, sweep_arguments):
    assert train(*sweep_arguments).code == 0
    runs = all_runs(only_sweep())
    emulated = [run for run in runs if run.record.arm == "fp8_tensorwise"]
    assert {run.record.status for run in runs} == {"completed"}
    for run in emulated:
        record = run.record
        assert not [key for key in record.summary if key.startswith(OF_PROCESS)]
        assert not [key for row in run.history for key in row if key.startswith(OF_PROCESS)]
        assert record.absent["perf/step_ms"] == "the mode is emulated on this device"
        assert run.contradictions == ()
        assert [layer.name for layer in record.proof.float8.kept] == ["head"]
        assert record.prediction.error_pct == 0
        assert record.prediction.peak_bytes == record.memory.peak_bytes
    (workload,) = json.loads((only_sweep() / "comparison.json").read_text())["workloads"]
    (arm,) = [arm for arm in workload["arms"] if arm["arm"] == "fp8_tensorwise"]
    assert arm["speedup"] is None
    assert arm["memory_saved_bytes"] is None
    text = (only_sweep() / "comparison.md").read_text()
    assert "not head (the output layer)" in text
    assert "emulated, hence without speed and memory: " in text


def test_a_sweep_goes_on_after_a_model_without_a_float8_layer(train):
    ended = train(*FLOAT8, "model.num_layers=1", "-m", "precision=fp8_tensorwise,amp_bf16", "trainer.steps=2")
    assert ended.code == 0
    found = {run.record.arm: run.record for run in all_runs(only_sweep())}
    assert (found["fp8_tensorwise"].status, found["amp_bf16"].status) == ("unsupported", "completed")
    assert found["fp8_tensorwise"].error.startswith("no layer of the model multiplies in float8")


def test_a_single_run_without_a_float8_layer_is_refused(train):
    ended = train(*FLOAT8, "model.num_layers=1", "precision=fp8_rowwise")
    assert ended.code == 2
    assert "precision=fp8_rowwise: no layer of the model multiplies in float8" in ended.err


def test_the_policy_of_fsdp2_is_refused(train):
    ended = train(*FLOAT8, "precision=fp8_rowwise", "parallel=fsdp2", "parallel.num_processes=2")
    assert ended.code == 2
    assert "use parallel.mixed_precision=autocast" in ended.err


def test_a_resumed_training_has_the_losses_of_a_whole_one(train):
    arguments = (*FLOAT8, "precision=fp8_tensorwise", "trainer.log_every=1", "trainer.checkpoint_every=6")
    assert train(*arguments, "trainer.steps=12", "output_dir=whole").code == 0
    assert train(*arguments, "trainer.steps=6", "output_dir=part").code == 0
    part = only_run("part")
    assert train(*arguments, "trainer.steps=12", f"resume={part.directory}", "output_dir=rest").code == 0
    whole = only_run("whole").column("train/loss")
    assert only_run("rest").column("train/loss") == {step: loss for step, loss in whole.items() if step > 6}
