"""The training goes on, and nothing of W&B stays behind, whatever becomes of its server or its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from wandb_file import WandbFile

from ampsweep.record import RunRecord, read_history

SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path
import psutil
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.factory import make_trackers

def wandb_core():
    children = psutil.Process().children(recursive=True)
    return [one for one in children if one.name().startswith("wandb-core") and one.status() != psutil.STATUS_ZOMBIE]

if __name__ == "__main__":
    directory, fault = Path(sys.argv[1]), sys.argv[2]
    record = RunRecord.read(directory)
    said = []
    trackers = make_trackers(TrackingConfig(), None, said.append)
    began = time.perf_counter()
    trackers.start(record, directory, resume_after=None)
    seconds = time.perf_counter() - began
    (core,) = wandb_core()
    for step in range(1, 11):
        if fault == "core killed" and step == 5:
            core.kill()
            core.wait()
        trackers.log({"train/loss": 1 / step}, step)
    if fault == "core killed at the end":
        core.suspend()  # so that finish waits for its answer
        threading.Timer(0.3, core.kill).start()
    record.status = "completed"
    trackers.finish(record)
    trackers.finish(record)
    print(json.dumps({"said": said, "wandb": record.wandb, "left": len(wandb_core()), "seconds": seconds}))
"""


@dataclass
class Child:
    said: list[str]
    wandb: dict[str, Any]
    left: int
    """wandb-core processes alive after the run was finished."""
    seconds: float
    """How long the start took."""


@pytest.fixture
def train(record: RunRecord, tmp_path: Path) -> Callable[..., Child]:
    """Track ten steps in a process of its own, with ``fault``; it must end well and wandb must print nothing."""

    def run(fault: str = "none", **environment: str) -> Child:
        record.write(tmp_path)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path), fault],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        (line,) = done.stdout.splitlines()
        return Child(**json.loads(line))

    return run


def test_no_wandb_core_survives_the_run(train: Callable[..., Child], tmp_path: Path) -> None:
    child = train()
    assert child.left == 0
    assert (child.wandb["mode"], child.wandb["last_step"]) == ("offline", 10)
    assert len(read_history(tmp_path)) == 10


def test_an_unreachable_server_lets_the_run_go_on_offline(
    train: Callable[..., Child], tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    child = train(WANDB_API_KEY="0" * 40, WANDB_INIT_TIMEOUT="1")
    mode, warning = child.said
    assert mode == "W&B: online, project ampsweep"
    assert warning.startswith("W&B: this run goes on offline, since it could not start on the server: ")
    assert "http://127.0.0.1:9" in child.wandb["reason"]
    assert child.wandb["reason"] in warning
    assert child.wandb["mode"] == "offline"
    assert "error" not in child.wandb
    assert child.seconds < 6
    assert child.left == 0
    assert read_wandb(tmp_path / child.wandb["directory"]).history == read_history(tmp_path)


def test_the_same_where_the_process_shares_the_wandb_core_of_its_parent(
    train: Callable[..., Child], tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    """As under `wandb agent`: the parent's wandb-core keeps the failed run and would refuse its id."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    try:
        child = train(WANDB_API_KEY="0" * 40, WANDB_INIT_TIMEOUT="1", WANDB_SERVICE=os.environ["WANDB_SERVICE"])
    finally:
        wandb.teardown()
    assert "error" not in child.wandb
    assert child.left == 0
    assert read_wandb(tmp_path / child.wandb["directory"]).history == read_history(tmp_path)


@pytest.mark.parametrize(("fault", "last_step"), [("core killed", 4), ("core killed at the end", 10)])
def test_a_killed_wandb_core_costs_one_line(
    fault: str, last_step: int, train: Callable[..., Child], tmp_path: Path
) -> None:
    child = train(fault)
    _, warning = child.said
    assert warning.startswith("W&B: lost (")
    assert child.wandb["error"] in warning
    assert child.wandb["last_step"] == last_step
    assert [row["step"] for row in read_history(tmp_path)] == list(range(1, 11))
    assert child.left == 0
