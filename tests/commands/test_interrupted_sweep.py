"""A sweep that is told to stop, or killed, leaves a true record, a comparison so far and no process."""

import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter"),
]

GATE, WAITING = Path("gate.open"), Path("gate.waiting")
SWEEP = (
    "-m",
    "seed=0,1",
    "precision=fp32,amp_bf16",
    "model=custom",
    "model._target_=own_models.Gated",
    "+model.at=6",
    "data=digits",
    "trainer.steps=10",
    "trainer.log_every=1",
    "tracking.mode=offline",
)


@pytest.fixture
def waiting(start, tmp_path):
    """A sweep that has come to step 6 of its first run and stands there until the gate is opened."""
    sweep = start(*SWEEP, f"+model.gate={tmp_path / GATE}")
    wait_until(WAITING.exists, "the sixth step")
    return sweep


@pytest.mark.parametrize("how", ["ctrl_c", "sigterm"])
def test_a_stopped_sweep_has_a_checkpoint_and_can_be_completed(how, waiting, train, tmp_path):
    assert len(waiting.alive()) >= 4, "the sweep, its fork server, the run and wandb-core"
    if how == "ctrl_c":
        waiting.ctrl_c()
    else:
        waiting.signal(signal.SIGTERM)
    time.sleep(0.5)  # within which the sweep has told its run
    GATE.touch()
    ended = waiting.finish()
    wait_until(lambda: not waiting.alive(), "every process has ended")
    assert ended.code == 1
    assert "Traceback" not in ended.err

    run, directory = only_run(), only_sweep()
    assert run.record.status == "interrupted"
    reason = "SIGINT" if how == "ctrl_c" else "SIGTERM"
    steps = [row["step"] for row in run.history]
    assert run.record.error == f"{reason} after step {len(steps)} of 10"
    assert steps == list(range(1, len(steps) + 1))
    assert (run.directory / "checkpoints/last.pt").is_file()
    assert (directory / "comparison.json").is_file()
    assert "interrupted" in (directory / "comparison.md").read_text()
    if how == "sigterm":
        return

    same = (*SWEEP[:-1], "tracking=disabled", f"+model.gate={tmp_path / GATE}", f"into={directory}")
    assert train(*same).code == 0
    runs = all_runs()
    assert [run.record.status for run in runs] == ["completed"] * 4
    continued = runs[0]
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
