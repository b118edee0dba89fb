"""A loop that is not ours, with the recorder around it, leaves records that report and pair like any other."""

import json
import math
from unittest.mock import Mock

import bare_loop
import pytest

from ampsweep.commands.main import main
from ampsweep.record import RunRecord, read_history


def test_its_records_report_and_pair(tmp_path, capsys):
    for mode in ("fp32", "amp_bf16"):
        for seed in (0, 1):
            directory = tmp_path / f"{mode}-{seed}"
            directory.mkdir()
            bare_loop.train(directory, mode, seed)
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    assert [(arm["arm"], arm["num_completed_pairs"]) for arm in workload["arms"]] == [("fp32", 0), ("amp_bf16", 2)]
    record = RunRecord.read(tmp_path / "amp_bf16-0")
    assert record.status == "completed"
    assert record.proof.flops.keys() == {"bfloat16"}
    assert record.memory.peak["optimizer_state"] > record.memory.peak["parameters"] > 0
    assert "perf/step_ms" in record.summary
    assert [row["step"] for row in read_history(tmp_path / "amp_bf16-0")] == list(range(1, bare_loop.STEPS + 1))


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (OSError("the disk is gone"), "failed", "OSError: the disk is gone"),
        (MemoryError(), "oom", "out of memory of step 6"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_an_error_is_its_outcome_and_no_row_is_lost(tmp_path, monkeypatch, error, status, sentence):
    step = Mock(side_effect=[None] * 5 + [error])
    monkeypatch.setattr(bare_loop.Precision, "step", step)
    with pytest.raises(type(error)):
        bare_loop.train(tmp_path, "fp32", 0)
    record = RunRecord.read(tmp_path)
    assert (record.status, record.error.startswith(sentence)) == (status, True)
    assert [row["step"] for row in read_history(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_loss_that_is_nan_once_is_the_last_row(tmp_path, monkeypatch):
    """A loop that goes on after it has diverged all the same."""
    entropy, factors = bare_loop.nn.functional.cross_entropy, iter([1.0] * 5 + [math.nan] + [1.0] * bare_loop.STEPS)
    monkeypatch.setattr(bare_loop.nn.functional, "cross_entropy", lambda *batch: entropy(*batch) * next(factors))
    monkeypatch.setattr(bare_loop.Precision, "step", lambda self, optimizer: None)
    bare_loop.train(tmp_path, "fp32", 0)
    record = RunRecord.read(tmp_path)
    assert (record.status, record.error) == ("diverged", "the training loss is nan at step 6")
    assert [row["step"] for row in read_history(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_rows_out_of_turn_are_refused_in_a_sentence(tmp_path, monkeypatch):
    log = bare_loop.Recorder.log
    monkeypatch.setattr(bare_loop.Recorder, "log", lambda self, values: [log(self, values), log(self, values)])
    sentence = "a row of step 1: the next is of step 2 or later, with all values of its step"
    with pytest.raises(ValueError, match=sentence):
        bare_loop.train(tmp_path, "fp32", 0)
    monkeypatch.undo()
    assert RunRecord.read(tmp_path).status == "failed"
