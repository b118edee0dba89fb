"""`complete` brings a run's W&B side to what its directory holds: no row lost, none doubled."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import Syncing, Wandb
from wandb_server import Fault

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord, history_line, read_history
from ampsweep.record.parts import ModeProof
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.run import sending_lock


@pytest.fixture(scope="module")
def syncing(served: Wandb) -> Syncing:
    return Syncing(served.address)


def train(
    record: RunRecord,
    directory: Path,
    address: WandbAddress,
    steps: range = range(1, 21),
    *,
    mode: str = "online",
    checkpoints: bool = False,
    resume_after: int | None = None,
    before_end: Callable[[], object] = int,
    **ending: Any,
) -> None:
    tracking = TrackingConfig(mode=mode, project="p", group="g", tags=["a"], checkpoints=checkpoints)
    record.config["tracking"] = asdict(tracking)
    tracker = make_tracker(tracking, None, lambda line: None, address)
    record.write(directory)
    tracker.start(record, directory, resume_after=resume_after)
    record.write(directory)
    for step in steps:
        tracker.log({"train/loss": 1 / step}, step)
    before_end()
    record.status = "completed"
    record.summary = {"val/loss": 0.5}
    for name, value in ending.items():
        setattr(record, name, value)
    tracker.finish(record)
    record.write(directory)


def test_a_run_of_an_offline_machine_is_as_it_were_online(
    record: RunRecord, tmp_path: Path, online: Wandb, shared: WandbAddress, syncing: Syncing
) -> None:
    record.started_at = "2026-01-02T03:04:05+00:00"
    train(record, tmp_path, shared, mode="offline", proof=ModeProof(fp32_arithmetic={"matmul": "exact"}))
    done = syncing(tmp_path)
    run = online.run(record)
    url = f"{online.server.url}/team/p/runs/{record.run_id}"
    assert done == f"Synced(num_sent=20, url='{url}', was_complete=False, lacking=())"
    assert run.rows == read_history(tmp_path)
    given = run.attributes
    assert (given["displayName"], given["groupName"]) == ("amp_bf16-gpt_tiny-b16-s0", "g")
    assert (given["jobType"], given["tags"]) == ("amp_bf16", ["a"])
    assert (run.config["arm"], run.config["seed"], run.config["model"]) == ("amp_bf16", 0, "gpt_tiny")
    assert (run.state, run.summary["status"], run.summary["val/loss"]) == ("finished", "completed", 0.5)
    assert run.summary["proof"] == record.proof.as_json()
    assert run.summary["started_at"] == record.started_at
    noted = RunRecord.read(tmp_path).wandb
    assert (noted.mode, noted.url, noted.last_step) == ("online", url, 20)


def test_the_second_time_there_is_nothing_to_do(
    record: RunRecord, tmp_path: Path, online: Wandb, shared: WandbAddress, syncing: Syncing
) -> None:
    train(record, tmp_path, shared, mode="offline")
    syncing(tmp_path)
    asked, before = len(online.server.recorded.requests), (tmp_path / "run.json").stat().st_mtime_ns
    assert NOTHING in syncing(tmp_path)
    later = {request.operation for request in online.server.recorded.requests[asked:]}
    steps = {"RunParquetHistory", "SampledHistoryPage"}  # of which some may be there twice
    assert later <= {"", "Viewer", "Run", "RunHistoryKeys", "RunFiles", "GetDefaultEntity", *steps}
    assert (tmp_path / "run.json").stat().st_mtime_ns == before


def test_wandb_sync_finds_nothing_to_send_either(
    record: RunRecord, tmp_path: Path, online: Wandb, shared: WandbAddress, syncing: Syncing
) -> None:
    train(record, tmp_path, shared, mode="offline")
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", "wandb"]

    def says() -> str:
        return subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=True).stderr

    assert "Would sync 1 run(s)" in says()
    syncing(tmp_path)
    assert "No runs to sync" in says()


def test_a_run_that_never_was_meant_for_wandb_is_sent_when_asked(
    record: RunRecord, tmp_path: Path, online: Wandb, syncing: Syncing
) -> None:
    record.config["tracking"] = {"mode": "disabled", "project": "p"}
    record.status = "completed"
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text(history_line({"step": 1, "train/loss": math.nan}) + '{"step": 2, "tra')
    assert "num_sent=1," in syncing(tmp_path)
    run = online.run(record)
    assert [row["step"] for row in run.rows] == [1]
    assert math.isnan(run.rows[0]["train/loss"])
    assert run.attributes["groupName"] == "multirun-7"
    assert NOTHING in syncing(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(on="file_stream"), Fault(status=0)], ids=["500", "dropped"])
def test_what_a_failing_server_missed_is_sent_once_it_is_back(
    fault: Fault, record: RunRecord, tmp_path: Path, online: Wandb, impatient: WandbAddress, syncing: Syncing
) -> None:
    train(record, tmp_path, impatient, before_end=lambda: online.server.faults.append(fault))
    assert RunRecord.read(tmp_path).wandb.error is not None
    online.server.faults.clear()
    syncing(tmp_path)
    run = online.run(record)
    assert run.rows == read_history(tmp_path)
    assert run.state == "finished"
    assert RunRecord.read(tmp_path).wandb.error is None
    assert NOTHING in syncing(tmp_path)


def test_rows_that_are_missing_in_the_middle_are_added(
    record: RunRecord, tmp_path: Path, online: Wandb, syncing: Syncing
) -> None:
    """As a wandb-core that lost some, or files of a resumed offline run sent by `wandb sync`."""
    train(record, tmp_path, online.address)
    lines = online.run(record).streams["wandb-history.jsonl"]
    del lines[12:15], lines[3]
    assert "num_sent=4," in syncing(tmp_path)
    rows = online.run(record).rows
    assert sorted(rows, key=lambda row: row["step"]) == read_history(tmp_path)
    assert NOTHING in syncing(tmp_path)


def test_a_run_that_goes_on_offline_is_continued(
    record: RunRecord, tmp_path: Path, online: Wandb, shared: WandbAddress, syncing: Syncing
) -> None:
    train(record, tmp_path, online.address, range(1, 11), status="interrupted", error="SIGINT after step 10 of 20")
    run = online.run(record)
    assert (run.state, run.summary["error"]) == ("failed", "SIGINT after step 10 of 20")
    record.error = None
    train(record, tmp_path, shared, range(9, 21), mode="offline", resume_after=8)
    assert "num_sent=10," in syncing(tmp_path)
    assert online.run(record).rows == read_history(tmp_path)
    assert [row["step"] for row in run.rows] == list(range(1, 21))
    assert (run.state, run.summary["status"]) == ("finished", "completed")
    assert "error" not in run.summary


def test_a_sync_that_breaks_off_is_completed_by_the_next(
    record: RunRecord, tmp_path: Path, online: Wandb, shared: WandbAddress, syncing: Syncing
) -> None:
    train(record, tmp_path, shared, mode="offline")
    with online.server.failing(Fault(on="file_stream", status=0, is_heard=True)):
        assert syncing(tmp_path) == "WandbError: not done in 10 s"
    assert "num_sent=" in syncing(tmp_path)
    assert online.run(record).rows == read_history(tmp_path)
    assert NOTHING in syncing(tmp_path)


@pytest.mark.parametrize(
    "fault",
    [Fault(on="/storage/", status=403), Fault(on="CreateRunFiles", status=403)],
    ids=["files", "their addresses"],
)
def test_a_record_that_storage_refused_is_said_and_sent_again(
    fault: Fault, record: RunRecord, tmp_path: Path, online: Wandb, impatient: WandbAddress, syncing: Syncing
) -> None:
    """wandb-core tries such a file once, and ends the run as if nothing had been."""
    with online.server.failing(fault):
        train(record, tmp_path, impatient)
        run = online.run(record)
        assert (run.rows, run.state, run.files) == (read_history(tmp_path), "finished", {})
        said = syncing(tmp_path)
        assert "num_sent=0," in said
        assert "lacking=('record.json',)" in said
    assert "lacking=()" in syncing(tmp_path)
    assert "record.json" in run.files
    assert "was_complete=True" in syncing(tmp_path)
    assert RunRecord.read(tmp_path).wandb.error is None


def test_a_record_of_an_earlier_end_is_replaced(
    record: RunRecord, tmp_path: Path, online: Wandb, impatient: WandbAddress, syncing: Syncing
) -> None:
    refuse = Fault(on="/storage/runs/", status=403)
    train(record, tmp_path, online.address, status="interrupted")
    with online.server.failing(refuse):
        train(record, tmp_path, impatient, range(21, 31), resume_after=20)
    run = online.run(record)
    assert (run.summary["status"], json.loads(run.files["record.json"])["status"]) == ("completed", "interrupted")
    assert "was_complete=False" in syncing(tmp_path)
    assert json.loads(run.files["record.json"])["status"] == "completed"
    assert "was_complete=True" in syncing(tmp_path)


def test_an_artifact_that_storage_refused_is_sent_again(
    record: RunRecord, tmp_path: Path, online: Wandb, impatient: WandbAddress, syncing: Syncing
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.pt").write_bytes(b"weights")
    with online.server.failing(Fault(on="/storage/artifacts/", status=403)):
        train(record, tmp_path, impatient, checkpoints=True)
        assert f"lacking=('checkpoint-{record.run_id}',)" in syncing(tmp_path)
    assert "lacking=()" in syncing(tmp_path)
    (checkpoint,) = [one for one in online.server.recorded.artifacts if one.run == record.run_id]
    assert (checkpoint.type, checkpoint.state) == ("checkpoint", "COMMITTED")
    assert "was_complete=True" in syncing(tmp_path)


def test_an_entity_unknown_to_the_server_costs_a_sentence(
    record: RunRecord, tmp_path: Path, online: Wandb, syncing: Syncing
) -> None:
    record.config["tracking"] |= {"entity": "nobody"}
    record.write(tmp_path)
    assert syncing(tmp_path).startswith("WandbError: entity nobody not found")
    assert "wandb" not in (tmp_path / "run.json").read_text().replace('"wandb": {}', "")


@pytest.mark.slow
def test_who_sends_a_run_is_alone(record: RunRecord, tmp_path: Path, online: Wandb, syncing: Syncing) -> None:
    record.write(tmp_path)
    with sending_lock(tmp_path):
        assert syncing(tmp_path) == "WandbError: another process is sending it"


NOTHING = "num_sent=0, "

KILLED = """
import sys, time
from pathlib import Path
from ampsweep.config.schema import TrackingConfig
from ampsweep.record import RunRecord
from ampsweep.tracking.tracker import make_tracker
directory = Path(sys.argv[1])
record = RunRecord.read(directory)
tracker = make_tracker(TrackingConfig(mode="online", project="p"), None, lambda line: None)
tracker.start(record, directory, resume_after=None)
record.write(directory)
for step in range(1, 1000):
    tracker.log({"train/loss": 1 / step}, step)
    if step == 30:
        print(flush=True)
    time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["all", "the run and wandb-core"])
def test_kill_9_loses_nothing(victims: str, record: RunRecord, tmp_path: Path, online: Wandb, syncing: Syncing) -> None:
    record.write(tmp_path)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (served,) = psutil.Process(process.pid).children()
        family = [process.pid, served.pid, *(core.pid for core in served.children())]
        for pid in family if victims == "all" else [family[0], *family[2:]]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        process.kill()
    psutil.wait_procs([served], timeout=20)
    rows = read_history(tmp_path)
    assert len(rows) >= 30
    syncing(tmp_path)
    run = online.run(record)
    assert run.rows == rows
    assert (run.state, run.summary["status"]) == ("failed", "interrupted")
    assert json.loads((tmp_path / "run.json").read_text())["wandb"]["last_step"] == rows[-1]["step"]
