"""A loop of one's own with `ampsweep.record` around it has records like those of `train.py`, and is never in danger."""

import json
import math

import own_loop
import pytest
import torch

import ampsweep
from ampsweep.analysis.runs import Run
from ampsweep.commands.main import main
from ampsweep.observe.step import OperatorTracer
from ampsweep.recorder.instruments import Instruments
from ampsweep.records import RunRecord, read_history


def test_arms_pair_by_seed_and_a_claim_is_disproved(tmp_path, capsys):
    for seed in (0, 1):
        own_loop.train(tmp_path, "fp32", seed)
        own_loop.train(tmp_path, "bf16", seed)
    run, _ = own_loop.train(tmp_path, "fp32", seed, arm="claims", claimed="bf16-mixed")
    record = RunRecord.read(run.directory)
    assert record.proof.flops.keys() == {"float32"}
    assert record.memory.peak["optimizer_state"] > record.memory.peak["parameters"] > 0
    assert record.dtypes.as_json() == dict.fromkeys(("compute", "parameters", "optimizer_state"), "float32")
    assert not record.summary.keys() & {"perf/data_wait_ms", "instrumentation/overhead_pct"}, "cannot be told apart"
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    report = capsys.readouterr().out
    (workload,) = json.loads(report)["workloads"]
    assert {arm["arm"]: arm["num_completed_pairs"] for arm in workload["arms"]} == {"fp32": 0, "bf16": 2, "claims": 0}
    assert "only 0% of the matmul and convolution operations ran in bfloat16" in report


@pytest.mark.parametrize(
    ("precision", "arm"), [("fp32", "fp32"), ("bf16", "amp_bf16"), ("fp16", "amp_fp16"), ("fp64", "fp64")]
)
def test_without_a_name_the_arm_is_what_the_traced_step_proves(precision, arm, tmp_path):
    run, _ = own_loop.train(tmp_path, precision, arm=None)
    record = RunRecord.read(run.directory)
    assert (record.arm, record.identity.precision_mode) == (arm, arm)
    assert (
        record.identity.dtype
        == {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}[precision]
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_amp_without_a_dtype_is_a_claim_of_either_half_precision(precision, tmp_path):
    run, _ = own_loop.train(tmp_path, precision, claimed="amp")
    assert bool(Run(tmp_path, RunRecord.read(run.directory)).contradictions) == (precision == "fp32")


def test_rows_come_every_few_steps_at_the_end_and_with_any_other_value(tmp_path):
    run, _ = own_loop.train(tmp_path)
    rows = read_history(run.directory)
    assert [row["step"] for row in rows] == [5, 10, 15, 20, 24]
    assert [row["step"] for row in rows if "val/loss" in row] == [24]
    assert (rows[-1]["accuracy"], rows[-1]["val/loss"]) == (0.5, rows[-1]["train/loss"])
    again, _ = own_loop.train(tmp_path)
    assert again.directory.name == f"{run.directory.name}-2", "a training that is recorded again is a repeat"


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (OSError("the disk is gone"), "failed", "OSError: the disk is gone"),
        (MemoryError(), "oom", "out of memory of step 6"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(0), "completed", None),
    ],
)
def test_an_error_of_the_loop_is_the_outcome_and_no_row_is_lost(tmp_path, error, status, sentence):
    seen = []

    def loss_of(outputs, targets):
        seen.append(outputs)
        if len(seen) == 6:
            raise error
        return torch.nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(type(error)):
        own_loop.train(tmp_path, loss_of=loss_of)
    (directory,) = tmp_path.iterdir()
    record = RunRecord.read(directory)
    assert (record.status, record.error and record.error.startswith(sentence)) == (status, sentence and True)
    assert [row["step"] for row in read_history(directory)] == [5]


@pytest.mark.parametrize(("lasts", "status"), [(1, "completed"), (100, "diverged")])
def test_a_loop_that_goes_on_after_nan_is_judged_by_its_last_loss(tmp_path, lasts, status):
    factors = [1.0] * 9 + [math.nan] * lasts + [1.0] * own_loop.STEPS
    loss_of = lambda *batch: torch.nn.functional.cross_entropy(*batch).detach().requires_grad_() * factors.pop(0)  # noqa: E731
    run, _ = own_loop.train(tmp_path, loss_of=loss_of)
    assert RunRecord.read(run.directory).status == status
    assert [row["step"] for row in read_history(run.directory)] == [5, 10, 15, 20, 24], "no row is dropped"


def broken(*args, **more):
    raise RuntimeError("the instrument broke")


@pytest.mark.parametrize(
    ("of", "method", "error"),
    [
        (Instruments, "step", "the recording ended: begin_step: RuntimeError: the instrument broke"),
        (Instruments, "count_update", "the recording ended: count_update: RuntimeError: the instrument broke"),
        (OperatorTracer, "_note", None),
    ],
)
def test_whatever_breaks_in_the_recording_the_training_goes_on(tmp_path, monkeypatch, of, method, error):
    _, expected = own_loop.train(tmp_path / "whole", "fp16")
    monkeypatch.setattr(of, method, broken)
    run, parameters = own_loop.train(tmp_path / "broken", "fp16")
    assert all(map(torch.equal, parameters, expected))
    record = RunRecord.read(run.directory)
    assert record.status == ("completed" if error is None else "interrupted")
    assert (record.error or "").startswith(error or "")
    if error is None:
        reason = "no step could be traced: RuntimeError: the instrument broke"
        assert record.absent["memory/peak_allocated_gib"].startswith(reason)
        assert record.proof.flops is None


def test_ranks_are_merged_by_their_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        run, _ = own_loop.train(tmp_path)
    record = RunRecord.read(run.directory)
    assert [(rank.rank, rank.peak_bytes) for rank in record.ranks] == [(r, record.memory.peak_bytes) for r in (0, 1)]
    assert [path.name for path in tmp_path.iterdir()] == [run.directory.name]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"log_every": 0}, "log_every=0, warmup_steps=3: at least 1 and 0"),
        ({"goal": "up"}, "goal='up': minimize or maximize"),
    ],
)
def test_an_impossible_setting_is_a_sentence_at_once(tmp_path, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        own_loop.train(tmp_path, **settings)
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        ampsweep.record(torch.nn.ReLU(), [])
    assert not [*tmp_path.iterdir()]
