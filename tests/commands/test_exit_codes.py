"""Exit code 0: every run has an outcome; 1: a run failed, or the disk is full; 2: wrong input (`test_bad_input.py`)."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import MLP, PATIENCE_S, only_run
from recorded_sweeps import FAILURES
from wandb_file import read_wandb_file

from ampsweep.records import files, find_records

OWN = (
    *("model=custom", "data=digits", "model._target_=own_models.Broken", "trainer.steps=5", "trainer.log_every=1"),
    "tracking=disabled",
)
LOSES_ROWS = {"is_killed", "leaves", "crashes"}
"""Ends that lose the rows of the last 50 ms."""


def test_a_sweep_goes_on_after_each_kind_of_failure(recorded):
    swept = recorded("failures")
    assert swept.ended.code == 1
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
    assert "killed by SIGKILL" in (swept.directory / "comparison.md").read_text()
    (lost,) = [run["oom"] for run in listed if run["oom"] is not None]
    assert (lost["phase"], lost["step"]) == ("forward", 3)
    out_of_memory = runs["runs_out_of_memory"]
    sent = read_wandb_file(out_of_memory.directory / out_of_memory.record.wandb.directory)
    assert sent.summary["oom"] | {"sentence": out_of_memory.record.error} == lost
    for text in (swept.ended.words, *((swept.directory / f"comparison.{kind}").read_text() for kind in ("md", "html"))):
        assert out_of_memory.record.error in text.replace("\\", "")


def test_no_failure_among_the_outcomes_is_success(recorded):
    assert [recorded(name).ended.code for name in ("arms", "offline", "keys", "search")] == [0, 0, 0, 0]


def assert_failed(ended, error):
    """A single run has failed with this error, a pattern; returns the file with the error in full."""
    run, kept = only_run(), (only_run().directory / "error.txt").resolve()
    assert (ended.code, ended.out, run.record.status) == (1, "", "failed")
    assert re.fullmatch(error, run.record.error)
    assert ended.said == [f"error: {run.directory.name} failed: {run.record.error}; its error in full: {kept}"]
    return kept


def test_a_single_failure_says_what_broke_and_keeps_the_traceback(train, monkeypatch):
    ended = train(*OWN, "+model.what=raises")
    kept = assert_failed(ended, r"RuntimeError: my model broke \(.*own_models\.py, line \d+\)")
    assert [row["step"] for row in only_run().history] == [1, 2]
    assert 'raise RuntimeError("my model broke")' in kept.read_text()

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = train(*OWN, "+model.what=raises")
    assert 'raise RuntimeError("my model broke")' in ended.err
    assert ended.err.splitlines()[-1].startswith("error: ")
    refused = train(*OWN, "model._target_=own_models.Unbuilt", "+model.what=raises")
    assert refused.code == 2
    assert 'raise RuntimeError("my model broke")' in refused.err


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("crashes", "killed by SIGSEGV"),
        pytest.param("exits", r"ended by sys\.exit\(5\) \(.*own_models.py, line \d+\)", marks=pytest.mark.nightly),
        pytest.param("leaves_well", "ended with exit code 0 before it returned", marks=pytest.mark.nightly),
    ],
)
def test_a_single_run_that_ends_its_process_has_failed(what, error, start):
    assert_failed(start(*OWN, f"+model.what={what}").finish(), error)


@pytest.mark.nightly
def test_a_thread_that_is_left_does_not_keep_a_single_run(start):
    assert start(*OWN, "+model.what=leaves_a_thread").process.wait(2 * PATIENCE_S) == 0


RUN = (*MLP, "trainer.steps=6", "device=cpu")
FULL = (28, os.strerror(28))


def test_a_checkpoint_without_room_stops_no_training(train):
    resource = pytest.importorskip("resource", reason="limits of a process are a POSIX matter")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # of every file of this process and its children
    try:
        ended = train(*RUN, "trainer.checkpoint_every=2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    without = "no room for checkpoints, the training goes on without: .*checkpoints/last.pt: File too large"
    not_kept = "the final weights are not kept: .*checkpoints/final.pt: File too large"
    assert re.fullmatch(f"{without}\n{not_kept}", "\n".join(ended.said))
    assert (ended.code, only_run().record.status, only_run().record.weights) == (0, "completed", [])
    assert not list((only_run().directory / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("run.json", (), "error: fp32-mlp_small-s0-"),
        ("config.yaml", (), "error: "),
        ("config.yaml", ("-m", "seed=0,1"), "config.yaml: No space left on device; nothing was trained"),
    ],
)
def test_a_file_of_a_run_without_room_is_one_sentence(name, mode, said, train, monkeypatch):
    replacing = files.replacing

    def refused(path, **more):
        if path.name == name:
            raise OSError(*FULL, str(path))
        return replacing(path, **more)

    monkeypatch.setattr(files, "replacing", refused)
    ended = train(*mode, *RUN)
    (line,) = ended.said
    assert ended.code == 1
    assert all(part in line for part in (said, name, "No space left on device"))


def test_a_comparison_without_room_is_no_fault_of_the_runs(train, monkeypatch):
    def write_comparison(*_):
        raise OSError(*FULL, "comparison.html")

    monkeypatch.setattr("ampsweep.report.comparison_document.write_comparison", write_comparison)
    ended = train("-m", *RUN, "seed=0")
    assert ended.code == 0
    assert ended.said == ["the comparison's files are not written: comparison.html: No space left on device"]
    assert "completed" in ended.out
    assert "comparison.html" not in ended.out


@pytest.mark.nightly
def test_a_run_whose_directory_is_deleted_has_a_record_all_the_same(train, tmp_path):
    deletes = (*OWN, "+model.what=deletes_its_directory", "predict.with_runs=false", "device=cpu")
    ended = train("-m", *deletes, "seed=0")
    ((_, record),) = find_records(tmp_path / "outputs").records
    assert (ended.code, record.status, "Traceback" in ended.err) == (1, "failed", False)
    shutil.rmtree(tmp_path / "outputs")
    alone = train(*deletes)
    assert (alone.code, len(alone.said), "No such file or directory" in alone.err) == (1, 1, True)


def test_a_stdout_that_nobody_reads_ends_nothing():
    prints = "guard_streams(); print('a' * 10**6); print('b', flush=True); open('went_on', 'w').close()"
    code = f"from ampsweep.standard_streams import guard_streams; {prints}"
    for stdout in ("| head -c 1", ">&-", ">&- 2>&- <&-"):
        command = ["bash", "-o", "pipefail", "-c", f'"{sys.executable}" -c "{code}" {stdout}']
        ended = subprocess.run(command, capture_output=True, check=False)
        assert (ended.returncode, ended.stderr, Path("went_on").exists()) == (0, b"", True)
        Path("went_on").unlink()


def test_a_device_lock_that_is_no_file_is_refused(train, tmp_path, monkeypatch):
    monkeypatch.setattr("ampsweep.launch.device_lock.tempfile.gettempdir", lambda: str(tmp_path))
    lock = tmp_path / f"ampsweep-{os.getuid()}-cpu.lock"
    lock.mkdir()
    ended = train(*RUN)
    assert (ended.code, ended.said) == (2, [f"error: the lock of device cpu cannot be taken: {lock}: Is a directory"])
    assert list(tmp_path.iterdir()) == [lock]
