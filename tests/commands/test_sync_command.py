"""`ampsweep sync`: a line a run, nothing twice, and one sentence where it cannot."""

import json
import os
from pathlib import Path

import pytest
from wandb_server import Fault


@pytest.fixture
def sync(ampsweep):
    """`ampsweep sync ARGUMENTS`: exit code, lines on stdout, lines on stderr."""

    def sync(*arguments):
        ended = ampsweep("sync", *arguments)
        return ended.code, ended.out.splitlines(), ended.err.splitlines()

    return sync


def everything(server):
    """What the server has of its runs, but for when it last heard of them."""
    return [(run.name, run.attributes, run.streams, run.files, run.summary, run.state) for run in server.runs]


def test_a_sweep_is_sent_once_as_a_group_with_its_comparison(copied, online, sync):
    """It was trained with `tracking=disabled`."""
    runs = copied.runs
    code, lines, said = sync(copied.directory)
    assert (code, said) == (0, [])
    there = {run.name: run for run in online.runs}
    assert len(there) == len(runs) + 1, "and their comparison"
    for run in runs:
        found = there[run.record.run_id]
        assert (found.rows, found.state) == (run.history, "finished")
        assert found.summary["status"] == run.record.status
        assert found.attributes["groupName"] == f"train_{copied.directory.name}"
        assert found.attributes["jobType"] == run.record.identity.precision_mode
        url = f"{online.url}/team/ampsweep/runs/{run.record.run_id}"
        assert f"{run.directory.name}: sent {len(run.history)} rows and its end, {url}" in lines
    comparison = there.keys() - {run.record.run_id for run in runs}
    assert lines[len(runs) :] == [
        f"comparison of {copied.directory.name}: sent, {online.url}/team/ampsweep/runs/{name}" for name in comparison
    ]

    state = everything(online)
    code, again, _ = sync(copied.directory)
    assert code == 0
    assert sorted(again) == sorted(f"{line.partition(':')[0]}: complete, {line.rpartition(' ')[2]}" for line in lines)
    assert everything(online) == state
    assert {path.name for path in Path().iterdir()} == {"outputs"}, "nothing is left where it was called"


@pytest.mark.nightly
def test_a_run_that_cannot_be_sent_keeps_none_back(copied, online, sync):
    sent, refused, other, damaged, running = runs = copied.runs[:5]
    for run in runs:
        record = run.record
        record.config["tracking"]["entity"] = "nobody" if run is refused else "team"
        if run is running:
            record.attempts[-1].pid, record.attempts[-1].started_at = os.getpid(), "2999-01-01T00:00:00+00:00"
        record.write(run.directory)
    history = damaged.directory / "history.jsonl"
    history.write_text("garbage\n")
    code, lines, said = sync(*(run.directory for run in runs))
    assert (code, said, len(lines)) == (1, [], 5)
    assert f"{running.directory.name}: still training, nothing sent" in lines
    assert f"{damaged.directory.name}: nothing sent, {history} is damaged: line 1 is not JSON" in lines
    assert f"{refused.directory.name}: nothing sent, W&B: entity nobody not found" in "\n".join(lines)
    assert {run.name for run in online.runs} == {sent.record.run_id, other.record.run_id}
    assert sync(damaged.directory) == (2, [], [f"error: {history} is damaged: line 1 is not JSON"])


def test_wrong_input_or_a_server_in_trouble_costs_a_sentence(copied, online, sync, monkeypatch, tmp_path):
    first, *_, last = (run.directory for run in copied.runs)
    file, before = first / "run.json", (first / "run.json").read_bytes()
    (tmp_path / "empty").mkdir()

    def refusal(directory):
        code, lines, (said,) = sync(directory)
        assert (code, lines, said[:7]) == (2, [], "error: ")
        return said.removeprefix("error: ")

    assert refusal("nowhere") == f"{tmp_path / 'nowhere'}: no such directory"
    assert refusal("empty") == f"{tmp_path / 'empty'}: no runs (run.json) in it"
    with online.failing(Fault(on="/storage/", status=403)):
        code, (sent, lacking), _ = sync(last)
    assert (code, sent.partition(",")[0]) == (1, f"{last.name}: sent 0 rows and its end")
    assert lacking == f"{last.name}: W&B lacks record.json: it does not show them"
    monkeypatch.setenv("WANDB_API_KEY", "1" * 40)
    assert refusal(first) == f"W&B: the server {online.url} refuses the API key: user is not logged in"
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert refusal(copied.directory).startswith("the W&B server http://127.0.0.1:9 cannot be reached: ")
    monkeypatch.delenv("WANDB_API_KEY")
    assert refusal(first) == "wandb is not logged in (`wandb login` or WANDB_API_KEY)"
    assert file.read_bytes() == before
    file.write_text(json.dumps(json.loads(before) | {"schema": 0}))
    assert refusal(first) == f"{file} is a run record of schema 0; this version of ampsweep reads schema 1"
    assert len(online.runs) == 1
