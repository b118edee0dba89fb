"""Ctrl-C, SIGTERM and SIGKILL: a true record, a checkpoint, a comparison so far, and no process left behind."""

import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")

GATE, WAITING = Path("gate.open"), Path("gate.waiting")
SWEEP = (
    *("-m", "seed=0,1", "precision=fp32", "model=custom", "model._target_=own_models.Gated", "+model.at=6"),
    *("data=digits", "trainer.steps=10", "trainer.log_every=1", "tracking.mode=offline"),
)


@pytest.fixture
def waiting(start, tmp_path):
    """A sweep that stands still in step 6 of its first run until the gate is opened."""
    sweep = start(*SWEEP, f"+model.gate={tmp_path / GATE}")
    wait_until(WAITING.exists, "the sixth step")
    return sweep


@pytest.mark.parametrize("how", ["ctrl_c", pytest.param("sigterm", marks=pytest.mark.nightly)])
def test_an_interrupted_sweep_keeps_a_checkpoint_and_is_completed_by_into(how, waiting, train, tmp_path):
    assert len(waiting.alive()) >= 4, "the sweep, its fork server, the run and wandb-core"
    if how == "ctrl_c":
        waiting.ctrl_c()
    else:
        waiting.signal(signal.SIGTERM)
    time.sleep(0.5)  # meanwhile the sweep passes the signal on to its run
    GATE.touch()
    ended = waiting.finish()
    wait_until(lambda: not waiting.alive(), "every process has ended")
    assert ended.code == 1
    assert "Traceback" not in ended.err

    run, directory = only_run(), only_sweep()
    steps = [row["step"] for row in run.history]
    reason = "SIGINT" if how == "ctrl_c" else "SIGTERM"
    assert (run.record.status, run.record.error) == ("interrupted", f"{reason} after step {len(steps)} of 10")
    assert steps == list(range(1, len(steps) + 1))
    assert (run.directory / "checkpoints/last.pt").is_file()
    assert (directory / "comparison.json").is_file()
    assert "interrupted" in (directory / "comparison.md").read_text()

    same = (*SWEEP[:-1], "tracking=disabled", f"+model.gate={tmp_path / GATE}", f"into={directory}")
    assert train(*same).code == 0
    assert [run.record.status for run in all_runs()] == ["completed"] * 2
    continued = all_runs()[0]
    assert continued.directory == run.directory
    assert [attempt.from_step for attempt in continued.record.attempts] == [0, len(steps)]
    assert continued.record.error is None
    assert [row["step"] for row in continued.history] == list(range(1, 11))


def test_a_sweep_stopped_before_its_first_run_leaves_nothing(train, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("ampsweep.commands.hydra_job.run_in_own_process", stop)
    assert train("-m", *MLP, "seed=0,1").code == 1
    assert [path for path in Path("outputs").rglob("*") if path.parent.name != "outputs"] == []


@pytest.mark.nightly
def test_the_run_of_a_killed_sweep_ends_with_a_checkpoint(waiting):
    child = int(WAITING.read_text())
    assert child != waiting.process.pid
    waiting.signal(signal.SIGKILL)
    waiting.process.wait()
    assert psutil.pid_exists(child)
    GATE.touch()
    wait_until(lambda: not waiting.alive(), "every process has ended")
    run = only_run()
    assert run.record.status == "interrupted"
    assert run.record.error.startswith("the parent process died after step ")
    assert (run.directory / "checkpoints/last.pt").is_file()
