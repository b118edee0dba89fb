"""`complete_runs` brings a run on W&B to what its directory holds: no row lost, none doubled, in their order."""

import json
import math
import os
import signal

import psutil
import pytest
from served import endless_training, train, wait_until
from wandb_server import Fault

from ampsweep.records import HISTORY_NAME, RunRecord, history_line, read_history
from ampsweep.records.sections import ModeProof
from ampsweep.tracking.wandb.run import sending_lock

COMPLETE = "was_complete=True"
ONLINE = {"mode": "online", "group": "g", "tags": ["a"]}


def test_a_run_of_an_offline_machine_is_as_it_were_online(record, tmp_path, online, shared):
    record.started_at = "2026-01-02T03:04:05+00:00"
    train(record, tmp_path, shared, group="g", tags=["a"], ending={"proof": ModeProof(outputs={"bfloat16": 9})})
    url = f"{online.server.url}/team/p/runs/{record.run_id}"
    assert online.sync(tmp_path) == f"Synced(num_sent=20, url='{url}', was_complete=False, lacking=())"
    assert len([*tmp_path.glob("wandb/offline-run-*/*.wandb.synced")]) == 1, "`wandb sync` does not send it again"
    run = online.run(record)
    assert run.rows == read_history(tmp_path)
    assert (run.attributes["groupName"], run.attributes["tags"], run.config["arm"]) == ("g", ["a"], "amp_bf16")
    assert (run.state, run.summary["status"], run.summary["val/loss"]) == ("finished", "completed", 0.5)
    assert (run.summary["proof"], run.summary["started_at"]) == (record.proof.as_json(), record.started_at)
    noted = RunRecord.read(tmp_path).wandb
    assert (noted.mode, noted.url, noted.last_step, noted.error) == ("online", url, 20, None)
    before = (tmp_path / "run.json").stat().st_mtime_ns
    assert COMPLETE in online.sync(tmp_path)
    assert (tmp_path / "run.json").stat().st_mtime_ns == before


def test_a_run_that_was_never_meant_for_wandb_is_sent_when_asked(record, tmp_path, online):
    record.config["tracking"] = {"mode": "disabled", "project": "p"}
    record.status = "completed"
    record.write(tmp_path)
    (tmp_path / HISTORY_NAME).write_text(history_line({"step": 1, "train/loss": math.nan}) + '{"step": 2, "tra')
    assert "num_sent=1," in online.sync(tmp_path)
    (row,) = online.run(record).rows
    assert row["step"] == 1
    assert math.isnan(row["train/loss"])
    assert online.run(record).attributes["groupName"] == "multirun-7"
    assert COMPLETE in online.sync(tmp_path)
    with sending_lock(tmp_path):
        assert online.sync(tmp_path) == "WandbError: another process is sending it"


def test_rows_that_are_missing_in_the_middle_are_added(record, tmp_path, online):
    """As a wandb-core that lost some, or files of a resumed offline run sent by `wandb sync`."""
    train(record, tmp_path, online.address, **ONLINE)
    lines = online.run(record).streams["wandb-history.jsonl"]
    del lines[12:15], lines[3]
    assert "num_sent=4," in online.sync(tmp_path)
    assert sorted(online.run(record).rows, key=lambda row: row["step"]) == read_history(tmp_path)
    assert COMPLETE in online.sync(tmp_path)


def test_a_run_that_goes_on_offline_is_continued(record, tmp_path, online, shared):
    ending = {"status": "interrupted", "error": "SIGINT after step 10 of 20"}
    train(record, tmp_path, online.address, range(1, 11), **ONLINE, ending=ending)
    run = online.run(record)
    assert (run.state, run.summary["error"]) == ("failed", ending["error"])
    record.error = None
    train(record, tmp_path, shared, range(9, 21), resume_after=8, group="g")
    assert "num_sent=10," in online.sync(tmp_path)
    assert run.rows == read_history(tmp_path)
    assert [row["step"] for row in run.rows] == list(range(1, 21))
    assert (run.state, run.summary["status"]) == ("finished", "completed")
    assert "error" not in run.summary


def test_a_sync_that_breaks_off_is_completed_by_the_next(record, tmp_path, online, shared):
    train(record, tmp_path, shared)
    with online.server.failing(Fault(on="file_stream", status=0, is_heard=True)):
        assert online.sync(tmp_path, silence_s=2.0) == "WandbError: not done in 2 s"
    assert "num_sent=" in online.sync(tmp_path)
    assert online.run(record).rows == read_history(tmp_path)
    assert COMPLETE in online.sync(tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["/storage/", "CreateRunFiles"])
def test_a_file_that_storage_refused_is_named_and_sent_again(place, record, tmp_path, online, impatient):
    """wandb-core tries such a file once, and ends the run as if nothing had been."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.pt").write_bytes(b"weights")
    has_checkpoint = place == "/storage/"
    with online.server.failing(Fault(on=place, status=403)):
        train(record, tmp_path, impatient, **ONLINE, checkpoints=has_checkpoint)
        run = online.run(record)
        assert (run.rows, run.state, run.files) == (read_history(tmp_path), "finished", {})
        said = online.sync(tmp_path)
    assert "num_sent=0," in said
    names = ("record.json", *([f"checkpoint-{record.run_id}"] if has_checkpoint else []))
    assert f"lacking={names!r}" in said
    assert "lacking=()" in online.sync(tmp_path)
    assert "record.json" in run.files
    found = [artifact.state for artifact in online.server.recorded.artifacts if artifact.run == record.run_id]
    assert found[-1:] == (["COMMITTED"] if has_checkpoint else [])
    assert COMPLETE in online.sync(tmp_path)
    assert RunRecord.read(tmp_path).wandb.error is None


def test_a_record_of_an_earlier_end_is_replaced(record, tmp_path, online, impatient):
    train(record, tmp_path, online.address, **ONLINE, ending={"status": "interrupted"})
    with online.server.failing(Fault(on="/storage/runs/", status=403)):
        train(record, tmp_path, impatient, range(21, 31), resume_after=20, **ONLINE)
    run = online.run(record)
    assert (run.summary["status"], json.loads(run.files["record.json"])["status"]) == ("completed", "interrupted")
    assert "was_complete=False" in online.sync(tmp_path)
    assert json.loads(run.files["record.json"])["status"] == "completed"


def test_an_entity_unknown_to_the_server_is_an_error(record, tmp_path, online):
    record.config["tracking"] |= {"entity": "nobody"}
    record.write(tmp_path)
    assert online.sync(tmp_path).startswith("WandbError: entity nobody not found")
    assert RunRecord.read(tmp_path).wandb == record.wandb


@pytest.mark.parametrize("is_alone", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_kill_9_loses_no_row_and_leaves_no_process(is_alone, record, tmp_path, online):
    """Of the training alone, or of all its processes."""
    with endless_training(record, tmp_path, "online") as training:
        wait_until(lambda: any(run.name == record.run_id for run in online.server.runs))
        family = psutil.Process(training.pid).children(recursive=True)
        assert any(process.name().startswith("wandb-core") for process in family)
        for pid in (training.pid, *(process.pid for process in ([] if is_alone else family))):
            os.kill(pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    rows = read_history(tmp_path)
    if is_alone:
        assert online.run(record).rows == rows, "the W&B process sends the rest by itself"
    online.sync(tmp_path)
    run = online.run(record)
    assert (run.rows, run.state, run.summary["status"]) == (rows, "failed", "interrupted")
    assert json.loads((tmp_path / "run.json").read_text())["wandb"]["last_step"] == rows[-1]["step"]
