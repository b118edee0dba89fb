"""Modes as a user sweeps them: float8 emulated on the CPU, torchao's optimizers, torch.compile."""

import json

import pytest
from command_line import MLP, all_runs, only_run, only_sweep

TINY = ("model=mlp_small", "model.hidden_size=32", "data=digits", "tracking=disabled", "device=cpu")
OF_PROCESS = ("perf/", "memory/", "device/", "instrumentation/")


def test_an_emulated_arm_is_compared_by_its_loss_only(train):
    pytest.importorskip("torchao")
    arms = ("precision=amp_bf16,fp8_tensorwise", "report.baseline=amp_bf16")
    assert train("-m", *TINY, *arms, "trainer.steps=6").code == 0
    runs = all_runs(only_sweep())
    assert {run.record.status for run in runs} == {"completed"}
    for run in [run for run in runs if run.record.arm == "fp8_tensorwise"]:
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
    assert (arm["speedup"], arm["memory_saved_bytes"]) == (None, None)
    text = (only_sweep() / "comparison.md").read_text()
    assert "not head (the output layer)" in text
    assert "emulated, hence without speed and memory: " in text


@pytest.mark.nightly
def test_float8_and_8_bit_states_resume_as_a_whole_run(train):
    pytest.importorskip("torchao")
    arguments = (*TINY, "precision=fp8_tensorwise", "optimizer=adamw_fp8", "trainer.log_every=1")
    saving = (*arguments, "trainer.checkpoint_every=6", "predict.with_runs=false")
    assert train(*saving, "trainer.steps=12", "output_dir=whole").code == 0
    assert train(*saving, "trainer.steps=6", "output_dir=part").code == 0
    part = only_run("part")
    ended = train(*saving, "trainer.steps=12", f"resume={part.directory}", "output_dir=rest")
    assert ended.code == 0
    assert not [line for line in ended.said if "starts fresh" in line]
    whole = only_run("whole").column("train/loss")
    assert only_run("rest").column("train/loss") == {step: loss for step, loss in whole.items() if step > 6}


@pytest.mark.nightly
def test_swept_optimizers_stand_beside_each_other(train):
    pytest.importorskip("torchao")
    ended = train("-m", *TINY, "model.hidden_size=256", "trainer.steps=4", "optimizer=adamw,adamw_8bit")
    assert ended.code == 0
    found = {run.record.identity.optimizer: run.record for run in all_runs()}
    packed, plain = found["adamw_8bit"], found["adamw"]
    assert packed.status == plain.status == "completed"
    assert (plain.dtypes.optimizer_state, packed.dtypes.optimizer_state) == ("float32", "uint8")
    assert packed.memory.peak["optimizer_state"] < plain.memory.peak["optimizer_state"] / 3
    assert packed.prediction.peak_bytes == packed.memory.peak_bytes
    assert "Each optimizer beside the others" in ended.out


COMPILED = ("-m", "trainer.compile=true", *MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:`torch.jit")  # of what torch imports to compile
def test_compiled_runs_of_a_sweep_are_recorded_as_such(train, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ended = train(*COMPILED, "seed=0,1", "predict.with_runs=true")
    assert ended.code == 0, ended.err
    first, second = sorted((run.record for run in all_runs()), key=lambda record: record.identity.seed)
    assert second.compilation.seconds < first.compilation.seconds
    assert [run.contradictions for run in all_runs()] == [(), ()]
    for record in (first, second):
        assert (record.status, record.proof.traced) == ("completed", "compiled")
        assert record.prediction.peak_bytes > 0  # of the eager step, so that there is nothing to compare it with
        assert (record.prediction.measured_bytes, record.prediction.error_pct) == (None, None)
        assert record.summary["memory/peak_allocated_gib"] * 2**30 == record.memory.peak_bytes


def test_a_machine_without_a_compiler_is_an_unsupported_outcome(train, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ended = train(*COMPILED, "seed=0")
    assert ended.code == 0
    record = only_run().record
    assert record.status == "unsupported"
    assert record.error.startswith("trainer.compile=true needs a C++ compiler, and there is none")
    assert "Traceback" not in ended.out + ended.err
