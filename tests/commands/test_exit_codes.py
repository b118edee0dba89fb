"""Exit code 0: every run has an outcome; 1: a run failed or was interrupted; 2: wrong input (`test_bad_input.py`)."""

import json
from pathlib import Path

import own_models
import pytest
from command_line import MLP, PATIENCE_S, only_run
from recorded_sweeps import FAILURES
from wandb_file import read_wandb_file

OWN = (
    *("model=custom", "data=digits", "model._target_=own_models.Broken", "trainer.steps=5", "trainer.log_every=1"),
    "tracking=disabled",
)
LOSES_ROWS = {"is_killed", "leaves", "crashes"}
"""Ends that lose the rows of the last 50 ms."""


def line_of(statement):
    """The first place of a statement in `own_models`, as a sentence names it."""
    lines = Path(own_models.__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if line.strip().startswith(statement))
    return f"{own_models.__file__}, line {number}"


def test_a_sweep_goes_on_after_each_kind_of_failure(recorded):
    swept = recorded("failures")
    assert swept.ended.code == 1
    comparison = (swept.directory / "comparison.md").read_text()
    workloads = json.loads((swept.directory / "comparison.json").read_text())["workloads"]
    listed = [run for workload in workloads for run in workload["runs"]]
    runs = {run.record.config["model"]["what"]: run for run in swept.runs}
    assert list(runs) == list(FAILURES)
    assert sorted(run["status"] for run in listed) == sorted(status for status, _ in FAILURES.values())
    for what, (status, error) in FAILURES.items():
        run, record = runs[what], runs[what].record
        assert (record.status, record.ended_at is None) == (status, False), what
        assert error in record.error if error else record.error is None
        steps = [row["step"] for row in run.history]
        whole = [1, 2, 3, 4, 5] if status in ("completed", "diverged") else [1, 2]
        assert steps == whole or (what in LOSES_ROWS and steps in ([], [1])), what
        kept = run.directory / "error.txt"
        assert kept.exists() == (status == "failed"), what
        assert (str(kept) in swept.ended.err) == (status == "failed")
        assert status != "failed" or error in swept.ended.err
        if what in LOSES_ROWS:  # it may end before W&B has begun
            continue
        sent = read_wandb_file(run.directory / record.wandb.directory)
        assert sent.exit_code == int(status == "failed"), what
        assert (sent.summary["status"], sent.summary.get("error")) == (status, record.error)
        assert sent.history == [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in run.history]
    assert 'raise RuntimeError("my model broke")' in (runs["raises"].directory / "error.txt").read_text()
    assert "killed by SIGKILL" in comparison
    lost = next(run["oom"] for run in listed if run["status"] == "oom")
    assert (lost["phase"], lost["step"]) == ("forward", 3)


def test_no_failure_among_the_outcomes_is_success(recorded):
    assert [recorded(name).ended.code for name in ("arms", "offline", "keys", "search")] == [0, 0, 0, 0]
    assert {run.record.status for run in recorded("arms").runs} == {"completed", "unsupported"}


def test_a_single_failure_says_what_broke_and_keeps_the_traceback(train, monkeypatch):
    ended = train(*OWN, "+model.what=raises")
    run, kept = only_run(), (only_run().directory / "error.txt").resolve()
    said = f"RuntimeError: my model broke ({line_of('raise RuntimeError')})"
    assert (ended.code, ended.out, run.record.status, run.record.error) == (1, "", "failed", said)
    assert ended.said == [f"error: {run.directory.name} failed: {said}; its error in full: {kept}"]
    assert [row["step"] for row in run.history] == [1, 2]
    assert 'raise RuntimeError("my model broke")' in kept.read_text()

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = train(*OWN, "+model.what=raises")
    assert 'raise RuntimeError("my model broke")' in ended.err
    assert ended.err.splitlines()[-1].startswith("error: ")
    refused = train(*OWN, "model._target_=own_models.Unwilling")
    assert refused.code == 2
    assert 'raise KeyError("no such layer")' in refused.err


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("crashes", "killed by SIGSEGV"),
        pytest.param("exits", f"ended by sys.exit(5) ({line_of('sys.exit')})", marks=pytest.mark.nightly),
        pytest.param("leaves_well", "ended with exit code 0 before it returned", marks=pytest.mark.nightly),
    ],
)
def test_a_single_run_that_ends_its_process_has_failed(start, what, said):
    ended = start(*OWN, f"+model.what={what}").finish()
    run = only_run()
    kept = (run.directory / "error.txt").resolve()
    assert (ended.code, ended.out, run.record.status, run.record.error) == (1, "", "failed", said)
    assert ended.said == [f"error: {run.directory.name} failed: {said}; its error in full: {kept}"]


@pytest.mark.nightly
def test_a_thread_that_is_left_does_not_keep_a_single_run(start):
    assert start(*OWN, "+model.what=leaves_a_thread").process.wait(2 * PATIENCE_S) == 0


@pytest.mark.parametrize("mode", [(), ("-m",)], ids=["single", "sweep"])
def test_a_run_cut_short_by_its_time_limit_has_completed(mode, train):
    ended = train(*mode, *MLP, "trainer.steps=1000000", "trainer.max_seconds=0.2", "trainer.log_every=1")
    record = only_run().record
    assert (ended.code, record.status) == (0, "completed")
    assert record.cut_short.startswith("trainer.max_seconds=0.2 reached after step ")
    assert record.cut_short.endswith(" of 1000000")
    assert "trainer.max_seconds=0.2 reached" in ended.words
    assert {"train/loss", "val/loss"} <= record.summary.keys()
