"""Memory is predicted beside what is measured, and a lack of it is a result, which is recorded."""

import json
import os
import signal

import pytest
from command_line import MLP, only_run
from recorded_sweeps import COMMANDS, SYNTHETIC
from torch import nn

from ampsweep.commands.main import main
from ampsweep.config.compose import compose_one
from ampsweep.launch.isolated_process import ChildExit
from ampsweep.records import RunRecord
from ampsweep.run.isolated_run import complete_record
from ampsweep.run.request import RunRequest

SMALL = ("model=mlp_small", *SYNTHETIC, "data.batch_size=8", "device=cpu", "trainer.steps=4", "tracking=disabled")
UNPREDICTED = (*SMALL, "predict.with_runs=false")


def limited(kib):
    return f"trainer.memory_limit_gib={kib / 2**20}"


@pytest.mark.parametrize(("kib", "phase", "step"), [(1, "build", None), (1000, "optimizer", 1)])
def test_a_single_run_says_where_it_ended_and_how_much_it_asked_for(kib, phase, step, train):
    ended = train(*UNPREDICTED, limited(kib))
    record, oom = only_run().record, only_run().record.oom
    assert (ended.code, record.status) == (0, "oom")
    assert (oom.phase, oom.step, oom.limit_bytes) == (phase, step, kib * 2**10)
    assert oom.in_use_bytes <= oom.limit_bytes < oom.in_use_bytes + oom.requested_bytes
    where = "while building" if step is None else f"in {phase} of step {step}"
    assert record.error.startswith(f"out of memory {where}: ")
    assert f"oom: out of memory {where}: " in ended.out


def test_memory_that_does_not_hold_the_model_is_an_outcome(train):
    assert train("-m", *MLP, "trainer.steps=2", "model.hidden_size=1000000").code == 0
    record = only_run().record
    assert (record.status, record.oom.phase, record.oom.limit_bytes) == ("oom", "build", None)
    assert record.oom.in_use_bytes > 2**20
    assert record.error.startswith("out of memory while building: 3.638 TiB asked for with ")


def test_a_run_that_the_kernel_killed_for_its_memory_is_out_of_memory(tmp_path):
    request = RunRequest(compose_one(SMALL), tmp_path)
    killed = ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="", oom_killed=True)
    record = complete_record(request, killed)
    assert record == RunRecord.read(tmp_path)
    assert (record.status, record.oom.phase) == ("oom", None)
    assert "the kernel counts a process killed for lack of memory" in record.error
    other = ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="")
    assert complete_record(request, other).status == "failed"


def test_a_watched_run_has_no_speed_and_says_why(train):
    ended = train(*UNPREDICTED, limited(4000))
    record = only_run().record
    assert (ended.code, record.status) == (0, "completed")
    assert not [key for key in record.summary if key.startswith(("perf/", "instrumentation/"))]
    assert "memory/peak_allocated_gib" in record.summary
    assert record.contamination.verdict == "contaminated"
    assert "every operator is watched" in record.contamination.reasons[0]
    assert "its speed does not count: under trainer.memory_limit_gib" in ended.out


def test_the_prediction_of_each_arm_is_recorded_and_compared(recorded):
    swept = recorded("offline")
    (workload,) = json.loads((swept.directory / "comparison.json").read_text())["workloads"]
    arms = {arm["arm"]: (arm["predicted_memory_bytes"], arm["prediction_error_pct"]) for arm in workload["arms"]}
    *trained, unsupported = (run.record for run in swept.runs)
    for record in trained:
        assert (record.prediction.target, record.prediction.error_pct) == ("cpu", 0)
        assert record.prediction.peak == record.memory.peak
        assert record.prediction.measured_bytes == record.memory.peak_bytes
        assert arms[record.arm] == (record.prediction.peak_bytes, 0)
    assert (unsupported.prediction, arms[unsupported.arm]) == (None, (None, None)), "nothing was measured"
    assert "- **predicted** peak memory of fp32 " in (swept.directory / "comparison.md").read_text()
    assert "fp32 (predicted)" in (swept.directory / "comparison.html").read_text()


def test_a_sweep_on_a_cpu_says_what_a_gpu_would_take_as_the_command_predicts_it(recorded, capsys):
    swept = recorded("offline")
    assert main(["predict", *COMMANDS["offline"], "predict.target=cuda", "format=json"]) == 0
    (predicted,) = json.loads(capsys.readouterr().out)["workloads"]
    (compared,) = json.loads((swept.directory / "comparison.json").read_text())["workloads"]
    figures = {mode["arm"]: (mode["allocated_bytes"], mode["reserved_bytes"]) for mode in predicted["modes"]}
    found = {arm["arm"]: (arm["peak_bytes"], arm["reserved_bytes"]) for arm in compared["on_gpu"]["arms"]}
    assert found.keys() == {"fp32", "amp_bf16", "amp_fp16", "pure_bf16"}, "tf32 has not trained"
    assert found == {arm: figures[arm] for arm in found}
    saved = {arm["arm"]: arm["saved_pct"] for arm in compared["on_gpu"]["arms"]}
    assert saved["fp32"] is None
    assert saved["pure_bf16"] == 100 * (found["fp32"][0] - found["pure_bf16"][0]) / found["fp32"][0]
    gpu = compared["on_gpu"]["target"]
    assert f" {gpu}: peak memory of fp32 " in swept.ended.out
    assert main(["predict", *COMMANDS["offline"], f"predict.gpus=[{gpu}]", "format=json"]) == 0
    (timed,) = json.loads(capsys.readouterr().out)["workloads"]
    rows, arms = {row["arm"]: row for row in timed["modes"]}, compared["on_gpu"]["arms"]
    assert {arm["arm"]: arm["step_ms"]["expected"] for arm in arms} == {
        arm["arm"]: rows[arm["arm"]]["step_ms"] for arm in arms
    }
    gains = {arm["arm"]: arm["speedup"]["low"] for arm in arms if arm["arm"] != "fp32"}
    assert gains == pytest.approx({arm: rows[arm]["speedup_over_fp32_low"] for arm in gains})


def test_runs_that_cannot_fit_are_reported_and_tried(train):
    too_large = (*SMALL, "data.batch_size=400", limited(2097))
    for mode in ((), ("-m", "seed=0,1")):
        ended = train(*mode, *too_large, f"output_dir=tried{len(mode)}")
        assert ended.code == 0
        line, *_ = [line for line in ended.err.splitlines() if "predicted not to fit" in line]
        assert line.startswith("fp32 with batch 400 is predicted not to fit: it takes 2.")
        assert line.endswith("trainer.memory_limit_gib leaves 2.05 MiB")
    record = only_run("tried0").record
    assert record.status == "oom"
    assert record.prediction.peak_bytes > record.oom.limit_bytes
    ended = train(*too_large, "predict.with_runs=false", "output_dir=unpredicted")
    assert "predicted" not in ended.err
    assert only_run("unpredicted").record.prediction is None


class Deadly(nn.Linear):
    def forward(self, inputs):
        if type(inputs).__name__ == "FakeTensor":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


class ByValue(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "mode", "why"), [("Deadly", ("-m",), None), ("ByValue", (), "depends on values")])
def test_a_model_that_cannot_be_predicted_trains_all_the_same(name, mode, why, train):
    own = (f"model._target_={__name__}.{name}", "+model.in_features=32", "+model.out_features=32")
    assert train(*mode, "model=custom", *own, *SMALL[1:]).code == 0
    record = only_run().record
    assert (record.status, record.error) == ("completed", None)
    assert record.prediction is None if why is None else why in record.prediction.refused
