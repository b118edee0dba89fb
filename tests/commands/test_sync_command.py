"""`ampsweep sync`: a line a run, nothing twice, and one sentence where it cannot."""

import json
import os
import socket
from pathlib import Path

import pytest
from command_line import all_runs, only_sweep
from wandb_server import Fault

from ampsweep.commands.main import main
from ampsweep.record import RunRecord


@pytest.fixture
def sync(capfd):
    """`ampsweep sync ARGUMENTS`: exit code, lines on stdout, lines on stderr."""

    def sync(*arguments):
        capfd.readouterr()
        code = main(["sync", *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out.splitlines(), err.splitlines()

    return sync


def test_a_sweep_is_sent_once_as_a_group_with_its_comparison(copied, online, sync):
    """It was trained with `tracking=disabled`."""
    runs = all_runs(copied.directory)
    code, lines, said = sync(copied.directory)
    assert (code, said) == (0, [])
    there = {run.name: run for run in online.runs}
    assert len(there) == len(runs) + 1, "and their comparison"
    for run in runs:
        found = there[run.record.run_id]
        assert found.rows == run.history
        assert found.attributes["groupName"] == f"train_{copied.directory.name}"
        assert found.attributes["jobType"] == run.record.identity.precision_mode
        assert (found.state, found.summary["status"]) == ("finished", run.record.status)
        url = f"{online.url}/team/ampsweep/runs/{run.record.run_id}"
        assert f"{run.directory.name}: sent {len(run.history)} rows and its end, {url}" in lines
    comparison = there.keys() - {run.record.run_id for run in runs}
    assert lines[len(runs) :] == [
        f"comparison of {copied.directory.name}: sent, {online.url}/team/ampsweep/runs/{name}" for name in comparison
    ]

    state = left(online)
    code, again, _ = sync(copied.directory)
    assert code == 0
    assert sorted(again) == sorted(f"{line.partition(':')[0]}: complete, {line.rpartition(' ')[2]}" for line in lines)
    assert left(online) == state
    assert {path.name for path in Path().iterdir()} == {"outputs"}, "nothing is left where it was called"


def left(server):
    """Everything that the server has of its runs, but for when it last heard of them."""
    return [(run.name, run.attributes, run.streams, run.files, run.summary, run.state) for run in server.runs]


@pytest.mark.slow
def test_an_offline_sweep_reads_there_as_it_does_here(train, online, sync, capfd):
    sweep = ("-m", "model=mlp_small", "trainer.steps=4", "trainer.log_every=2", "device=cpu", "precision=fp32,amp_bf16")
    ended = train(*sweep, "tracking.mode=offline", "tracking.group=mine")
    assert (ended.code, len(ended.said)) == (0, 1), "the line that says how to send it"
    assert online.runs == []
    directory = only_sweep()
    (comparison,) = sync(directory)[1][2:]
    assert comparison.startswith(f"comparison of {directory.name}: sent, ")
    (run,) = [run for run in online.runs if run.attributes["jobType"] == "comparison"]
    assert (run.state, run.attributes["groupName"]) == ("finished", "mine")
    assert run.files[run.summary["comparison"]["path"]] == (directory / "comparison.html").read_bytes()
    assert main(["report", "wandb://team/ampsweep?group=mine", "--output", "there"]) == 0
    capfd.readouterr()
    here, there = (json.loads((place / "comparison.json").read_text()) for place in (directory, Path("there")))
    for run in (*here["workloads"][0]["runs"], *there["workloads"][0]["runs"]):
        del run["directory"]
    assert there == here
    assert [arm["prediction_error_pct"] for arm in here["workloads"][0]["arms"]] == [0, 0]


def test_a_run_that_still_trains_is_left_alone(copied, online, sync):
    first, *others = all_runs(copied.directory)
    record = first.record
    record.attempts[-1].pid = os.getpid()
    record.attempts[-1].started_at = "2999-01-01T00:00:00+00:00"
    record.write(first.directory)
    code, lines, _ = sync(copied.directory)
    assert code == 1
    assert f"{first.directory.name}: still training, nothing sent" in lines
    assert len(online.runs) == len(others)


@pytest.mark.slow
def test_a_run_that_the_server_refuses_keeps_none_back(copied, online, sync):
    runs = all_runs(copied.directory)
    for number, run in enumerate(runs):
        record = run.record
        record.config["tracking"]["entity"] = "nobody" if number == 1 else "team"
        record.write(run.directory)
    code, lines, said = sync(*(run.directory for run in runs[:3]))
    assert (code, said, len(lines)) == (1, [], 3)
    assert lines[-1].startswith(f"{runs[1].directory.name}: nothing sent, W&B: entity nobody not found")
    assert {run.name for run in online.runs} == {runs[0].record.run_id, runs[2].record.run_id}
    code, lines, (said,) = sync(runs[1].directory)
    assert (code, lines) == (2, [])
    assert said.startswith(f"error: {runs[1].directory}: W&B: entity nobody not found")


def test_files_that_storage_refuses_are_told(copied, online, sync):
    run = all_runs(copied.directory)[0]
    with online.failing(Fault(on="/storage/", status=403)):
        code, lines, said = sync(run.directory)
    assert (code, said) == (1, [])
    name, number = run.directory.name, len(run.history)
    assert lines[0].startswith(f"{name}: sent {number} rows and its end, ")
    assert lines[1] == f"{name}: W&B lacks record.json: it does not show them"
    code, (sent,), _ = sync(run.directory)
    assert (code, sent.partition(",")[0]) == (0, f"{name}: sent 0 rows and its end")
    assert "record.json" in online.runs[0].files
    code, (complete,), _ = sync(run.directory)
    assert (code, complete.partition(",")[0]) == (0, f"{name}: complete")


def test_a_damaged_history_is_not_sent_and_keeps_none_back(copied, online, sync):
    damaged, *others = all_runs(copied.directory)[:3]
    path = damaged.directory / "history.jsonl"
    path.write_text("garbage\n" + path.read_text())
    code, lines, said = sync(damaged.directory, *(run.directory for run in others))
    assert (code, said, len(lines)) == (1, [], 3)
    assert f"{damaged.directory.name}: nothing sent, {path} is damaged: line 1 is not JSON" in lines
    assert {run.name for run in online.runs} == {run.record.run_id for run in others}
    assert sync(damaged.directory) == (2, [], [f"error: {path} is damaged: line 1 is not JSON"])


def test_wrong_input_costs_a_sentence(copied, online, sync, monkeypatch, tmp_path):
    (run, *_) = all_runs(copied.directory)
    assert sync("nowhere") == (2, [], [f"error: {tmp_path / 'nowhere'}: no such directory"])
    (tmp_path / "empty").mkdir()
    assert sync("empty") == (2, [], [f"error: {tmp_path / 'empty'}: no runs (run.json) in it"])
    monkeypatch.setenv("WANDB_API_KEY", "1" * 40)
    refused = f"error: W&B: the server {online.url} refuses the API key: user is not logged in"
    assert sync(run.directory) == (2, [], [refused])
    monkeypatch.delenv("WANDB_API_KEY")
    assert sync(run.directory) == (2, [], ["error: wandb is not logged in (`wandb login` or WANDB_API_KEY)"])
    file = run.directory / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 0}))
    refused = f"error: {file} is a run record of schema 0; this version of ampsweep reads schema 1"
    assert sync(run.directory) == (2, [], [refused])
    assert online.runs == []


def test_a_server_that_is_away_costs_a_sentence(copied, online, sync, monkeypatch):
    before = (all_runs(copied.directory)[0].directory / "run.json").read_bytes()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        code, lines, (said,) = sync(copied.directory)
    assert (code, lines) == (2, [])
    assert said.startswith(f"error: the W&B server {url} cannot be reached: ")
    assert (all_runs(copied.directory)[0].directory / "run.json").read_bytes() == before
    assert not RunRecord.read(all_runs(copied.directory)[0].directory).wandb
