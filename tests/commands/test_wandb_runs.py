"""What W&B gets of runs, who may send it, and that no training depends on its server."""

import json
import sys
from pathlib import Path

import pytest
from command_line import all_runs, only_run, only_sweep
from wandb_file import read_wandb_file
from wandb_server import Fault

from ampsweep.standard_streams import copied_output
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.sync_run import complete_runs

RUN = ("model=mlp_small", "trainer.steps=4", "trainer.log_every=2", "predict.with_runs=false")
SYNC = "send runs later with `ampsweep sync DIRECTORY`"


def tracked(run):
    return read_wandb_file(run.directory / run.record.wandb.directory)


def test_a_sweep_is_a_group_with_the_precision_mode_as_job_type(recorded):
    swept = recorded("offline")
    assert swept.ended.said == [f"W&B: offline, as tracking.mode says; {SYNC}"], "once for the whole sweep"
    assert len({run.record.wandb.id for run in swept.runs}) == 5
    group = f"train_{swept.directory.name}"
    for run in swept.runs:
        arm, file, sent = run.record.arm, tracked(run), tracked(run).run
        assert (sent.run_id, sent.run_group, sent.job_type) == (run.record.wandb.id, group, arm)
        assert (sent.project, file.exit_code, file.history) == ("ampsweep", 0, run.history)
        assert (file.config["precision_mode"], file.config["model"]) == (arm, "mlp_small")
        assert file.config["pair_key"] == run.record.pair_key
        if arm != "tf32":
            record = json.loads((run.directory / run.record.wandb.directory / "files/record.json").read_text())
            assert record["prediction"] == run.record.prediction.as_json()
            assert record["prediction"]["error_pct"] == 0, "both are there before the run ends on W&B"


def test_names_and_the_log_follow_the_config(train):
    named = ("tracking.project=mine", "tracking.group=tuesday", "tracking.tags=[a,b]", "tracking.entity=team")
    assert train(*RUN, "tracking.mode=offline", *named, "tracking.console=true").code == 0
    run, sent = only_run(), tracked(only_run()).run
    assert (sent.project, sent.run_group, list(sent.tags), sent.entity) == ("mine", "tuesday", ["a", "b"], "team")
    kept = (run.directory / "output.log").read_text()
    assert "W&B: offline" in kept
    assert (run.directory / run.record.wandb.directory / "files/output.log").read_text() == kept


def test_output_is_copied_and_shown(tmp_path, capfd):
    with copied_output(tmp_path / "output.log"):
        print("one")
        print("two \ud800", file=sys.stderr)
        assert not sys.stdout.isatty()
    print("three")
    assert (tmp_path / "output.log").read_text() == "one\ntwo \\ud800\n"
    assert capfd.readouterr().out == "one\nthree\n"


def test_without_a_login_or_a_server_a_run_is_offline(train, monkeypatch):
    ended = train(*RUN, "output_dir=no_login")
    assert ended.said == [f"W&B: offline, since wandb is not logged in (`wandb login` or WANDB_API_KEY); {SYNC}"]
    assert only_run("no_login").record.wandb.mode == "offline"
    assert not (only_run("no_login").directory / "output.log").exists()

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    begins, lost = train(*RUN).said
    assert begins == "W&B: online, project ampsweep"
    why = "no connection to the server: Connection refused"
    assert lost == f"W&B: lost ({why}); history.jsonl has every row, `ampsweep sync DIRECTORY` sends what W&B lacks"
    record = only_run().record
    assert (record.status, record.wandb.mode, len(only_run().history)) == ("completed", "offline", 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fails_then", "sent", "why"),
    [
        ("^$", 2, ""),
        ("", 0, " (the W&B server {} cannot be reached: the server does not answer)"),
        ("UpsertBucket", 0, " (not done in 2 s)"),
    ],
    ids=["back", "silent", "stuck"],
)
def test_rows_that_a_sweep_lost_are_sent_at_its_end(fails_then, sent, why, train, online, monkeypatch):
    call, fault = WandbAddress.call, Fault(on="UpsertBucket", delay_s=20.0)
    online.faults.append(fault)

    def call_then(address, function, *arguments, **listening):
        if function is complete_runs:
            fault.on = fails_then
        return call(address, function, *arguments, **listening)

    monkeypatch.setattr(WandbAddress, "call", call_then)
    if fails_then == "UpsertBucket":
        monkeypatch.setattr("ampsweep.tracking.wandb.sync_run._AFTER_S", 2.0)
    ended = train("-m", *RUN, "seed=0,1", "device=cpu")
    assert ended.code == 0
    (line,) = [line for line in ended.said if "sent after all" in line]
    rest = f"{why.format(online.url)}; `ampsweep sync {only_sweep().resolve()}` sends the rest" if why else ""
    assert line == f"W&B: {sent} of 2 lost runs sent after all{rest}"
    there = {run.name: run.rows for run in online.runs}
    for run in all_runs() if sent else ():
        assert (there[run.record.run_id], run.record.wandb.error) == (run.history, None)
    assert len(there) == (sent and sent + 1), "and their comparison"


AGENT = {"WANDB_SWEEP_ID": "sweep123", "WANDB_RUN_ID": "run45678", "WANDB_PROJECT": "agents"}
KEY_REFUSED = "refuses the API key: user is not logged in; tracking.mode=offline trains without a server"
NO_ENTITY = "has no entity 'nobody', or not for this API key; tracking.mode=offline trains without a server"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "environment", "said"),
    [
        (("train", *RUN, "tracking.entity=nobody"), {}, NO_ENTITY),
        (("train", *RUN), AGENT | {"WANDB_ENTITY": "nobody"}, NO_ENTITY),
        (("train", "-m", *RUN, "precision=fp32,amp_bf16"), {"WANDB_API_KEY": "9" * 40}, KEY_REFUSED),
    ],
)
def test_a_wrong_key_or_entity_ends_a_command_before_it_begins(
    command, environment, said, ampsweep, online, machine, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = ampsweep(*command)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"error: W&B: the server {online.url} {said}\n"
    assert ([*machine.rglob("*")], [*Path().iterdir()], online.runs) == ([], [], [])


def test_a_server_is_not_asked_offline(train, online):
    assert train(*RUN, "tracking.mode=offline", "tracking.entity=nobody").code == 0
    assert online.recorded.requests == []
