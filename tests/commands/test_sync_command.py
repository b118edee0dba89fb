"""`ampsweep sync`: a line a run, nothing twice, and one sentence where it cannot."""

import json
import os
import socket
from pathlib import Path

import pytest
from command_line import all_runs
from wandb_server import Fault

from ampsweep.record import RunRecord


@pytest.fixture
def sync(ampsweep):
    """`ampsweep sync ARGUMENTS`: exit code, lines on stdout, lines on stderr."""

    def sync(*arguments):
        ended = ampsweep("sync", *arguments)
        return ended.code, ended.out.splitlines(), ended.err.splitlines()

    return sync


def left(server):
    """Everything that the server has of its runs, but for when it last heard of them."""
    return [(run.name, run.attributes, run.streams, run.files, run.summary, run.state) for run in server.runs]


def test_a_sweep_is_sent_once_as_a_group_with_its_comparison(copied, online, sync, ampsweep):
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
    assert_reads_as_here(copied.directory, ampsweep)


def assert_reads_as_here(directory, ampsweep):
    """Make the comparison from the server, and compare it with the one beside the runs."""
    address = f"wandb://team/ampsweep?group=train_{directory.name}"
    assert ampsweep("report", address, "--output", "there").code == 0
    here, there = (json.loads((place / "comparison.json").read_text()) for place in (directory, Path("there")))
    for run in (*here["workloads"][0]["runs"], *there["workloads"][0]["runs"]):
        del run["directory"]
    assert there == here


@pytest.mark.nightly
def test_a_run_that_cannot_be_sent_keeps_none_back(copied, online, sync):
    runs = all_runs(copied.directory)
    for number, run in enumerate(runs):
        record = run.record
        record.config["tracking"]["entity"] = "nobody" if number == 1 else "team"
        record.write(run.directory)
    record = runs[4].record
    record.attempts[-1].pid = os.getpid()
    record.attempts[-1].started_at = "2999-01-01T00:00:00+00:00"
    record.write(runs[4].directory)
    history = runs[3].directory / "history.jsonl"
    history.write_text("garbage\n" + history.read_text())
    code, lines, said = sync(*(run.directory for run in runs[:5]))
    assert (code, said, len(lines)) == (1, [], 5)
    assert f"{runs[4].directory.name}: still training, nothing sent" in lines
    refused = f"{runs[1].directory.name}: nothing sent, W&B: entity nobody not found"
    assert any(line.startswith(refused) for line in lines)
    damaged = f"{history} is damaged: line 1 is not JSON"
    assert f"{runs[3].directory.name}: nothing sent, {damaged}" in lines
    assert {run.name for run in online.runs} == {runs[0].record.run_id, runs[2].record.run_id}
    code, lines, (said,) = sync(runs[1].directory)
    assert (code, lines) == (2, [])
    assert said.startswith(f"error: {runs[1].directory}: W&B: entity nobody not found")
    assert sync(runs[3].directory) == (2, [], [f"error: {damaged}"])


def test_wrong_input_or_a_server_in_trouble_costs_a_sentence(copied, online, sync, monkeypatch, tmp_path):
    (run, *_) = all_runs(copied.directory)
    assert sync("nowhere") == (2, [], [f"error: {tmp_path / 'nowhere'}: no such directory"])
    (tmp_path / "empty").mkdir()
    assert sync("empty") == (2, [], [f"error: {tmp_path / 'empty'}: no runs (run.json) in it"])
    last = all_runs(copied.directory)[-1].directory
    with online.failing(Fault(on="/storage/", status=403)):
        code, (sent, lacking), _ = sync(last)
    assert (code, sent.partition(",")[0]) == (1, f"{last.name}: sent 0 rows and its end")
    assert lacking == f"{last.name}: W&B lacks record.json: it does not show them"
    key = os.environ["WANDB_API_KEY"]
    monkeypatch.setenv("WANDB_API_KEY", "1" * 40)
    refused = f"error: W&B: the server {online.url} refuses the API key: user is not logged in"
    assert sync(run.directory) == (2, [], [refused])
    monkeypatch.delenv("WANDB_API_KEY")
    assert sync(run.directory) == (2, [], ["error: wandb is not logged in (`wandb login` or WANDB_API_KEY)"])
    monkeypatch.setenv("WANDB_API_KEY", key)

    file = run.directory / "run.json"
    before = file.read_bytes()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        code, lines, (said,) = sync(copied.directory)
    assert (code, lines) == (2, [])
    assert said.startswith(f"error: the W&B server {url} cannot be reached: ")
    assert file.read_bytes() == before
    assert not RunRecord.read(run.directory).wandb

    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 0}))
    refused = f"error: {file} is a run record of schema 0; this version of ampsweep reads schema 1"
    assert sync(run.directory) == (2, [], [refused])
    assert len(online.runs) == 1
