"""What W&B gets of runs, who may send it, and that no training depends on its server."""

import json
import signal
import sys
from pathlib import Path

import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until
from wandb_file import read_wandb_file
from wandb_server import KEY, Fault

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
    files = {run.record.arm: (run, tracked(run)) for run in swept.runs}
    assert {file.run.run_group for _, file in files.values()} == {f"train_{swept.directory.name}"}
    assert len({file.run.run_id for _, file in files.values()}) == 5
    for arm, (run, file) in files.items():
        assert (file.run.job_type, file.run.project, file.exit_code) == (arm, "ampsweep", 0)
        assert file.run.run_id == run.record.wandb.id
        assert file.config["precision_mode"] == run.record.identity.precision_mode
        assert file.config["model"] == "mlp_small"
        own = {key: value for key, value in run.record.config["precision"].items() if key != "dtype"}
        assert file.config["config"]["precision"] == own, "the identity has the dtype"
        assert file.config["pair_key"] == run.record.pair_key
        assert file.history == run.history
        if arm != "tf32":
            sent = json.loads((run.directory / run.record.wandb.directory / "files/record.json").read_text())
            assert sent["prediction"] == run.record.prediction.as_json()
            assert sent["prediction"]["error_pct"] == 0, "both are there before the run ends on W&B"


def test_names_and_the_log_follow_the_config(train, tmp_path, capfd):
    named = ("tracking.project=mine", "tracking.group=tuesday", "tracking.tags=[a,b]", "tracking.entity=team")
    assert train(*RUN, "tracking.mode=offline", *named, "tracking.console=true").code == 0
    run, sent = only_run(), tracked(only_run()).run
    assert (sent.project, sent.run_group, list(sent.tags), sent.entity) == ("mine", "tuesday", ["a", "b"], "team")
    kept = (run.directory / "output.log").read_text()
    assert "W&B: offline" in kept
    assert (run.directory / run.record.wandb.directory / "files/output.log").read_text() == kept
    capfd.readouterr()
    with copied_output(tmp_path / "output.log"):
        print("one")
        print("two \ud800", file=sys.stderr)
        assert not sys.stdout.isatty()
    print("three")
    assert (tmp_path / "output.log").read_text() == "one\ntwo \\ud800\n"
    assert capfd.readouterr().out == "one\nthree\n"


def test_without_a_login_or_a_server_a_run_is_offline(train, monkeypatch):
    ended = train(*RUN, "output_dir=no_login")
    assert ended.code == 0
    assert ended.said == [f"W&B: offline, since wandb is not logged in (`wandb login` or WANDB_API_KEY); {SYNC}"]
    assert only_run("no_login").record.wandb.mode == "offline"
    assert not (only_run("no_login").directory / "output.log").exists()

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    ended = train(*RUN)
    assert ended.code == 0
    why = "no connection to the server: Connection refused"
    assert ended.said == [
        "W&B: online, project ampsweep",
        f"W&B: lost ({why}); history.jsonl has every row, `ampsweep sync DIRECTORY` sends what W&B lacks",
    ]
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


@pytest.mark.nightly
def test_a_stopped_run_goes_on_as_the_same_run(start, wandb_server):
    run = ("model=mlp_small", "trainer.steps=600", "trainer.log_every=5", "tracking.project=p")
    first = start(*run, **wandb_server.environment)
    wait_until(lambda: wandb_server.runs and all_runs() and len(only_run().history) > 2, "it trains")
    first.signal(signal.SIGTERM)
    assert first.finish().code == 1
    (there,) = wandb_server.runs
    assert (there.state, there.summary["status"]) == ("failed", "interrupted")
    assert there.rows == only_run().history

    second = start(*run, "resume=auto", **wandb_server.environment)
    assert second.finish().code == 0
    assert wandb_server.runs == [there]
    assert (there.state, there.summary["status"]) == ("finished", "completed")
    assert there.rows == only_run().history
    steps = [row["step"] for row in there.rows]
    assert steps == sorted({*steps, *range(5, 601, 5)}), "and one where it was interrupted"


def test_disabled_means_that_wandb_leaves_no_file(train, machine):
    ended = train(*MLP, "trainer.steps=4")
    assert (ended.code, ended.said) == (0, [])
    assert {path.name for path in only_run().directory.iterdir()} == {"run.json", "history.jsonl", ".hydra"}
    assert not list(machine.iterdir())


AGENT = {"WANDB_SWEEP_ID": "sweep123", "WANDB_RUN_ID": "run45678", "WANDB_PROJECT": "agents"}
KEY_REFUSED = "refuses the API key: user is not logged in; tracking.mode=offline trains without a server"
NO_ENTITY = "has no entity 'nobody', or not for this API key; tracking.mode=offline trains without a server"


def test_a_run_of_a_wandb_agent_belongs_to_its_sweep(train, monkeypatch):
    """As `wandb agent` starts it: its command line, and its environment over what the config says."""
    for name, value in {**AGENT, "WANDB_ENTITY": "team", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, value)
    ended = train(*RUN, "precision=amp_fp16", "seed=2", "precision.init_scale=1024")
    assert ended.code == 0
    assert ended.said == [f"W&B: offline, as WANDB_MODE says; {SYNC}"]
    run = only_run()
    assert run.record.wandb.id == "run45678"
    file = tracked(run)
    assert (file.run.run_id, file.run.sweep_id, file.run.project) == ("run45678", "sweep123", "agents")
    assert (file.run.job_type, file.config["arm"]) == ("amp_fp16", "amp_fp16+init_scale=1024")
    assert file.history == run.history


@pytest.fixture
def refused(train, ampsweep, online, machine, tmp_path):
    """The sentence with which a command ends that the server refuses and that leaves no trace."""

    def refused(*arguments):
        command = ampsweep if arguments[0] == "sweep" else train
        ended = command(*arguments)
        (line,) = ended.err.splitlines()
        assert (ended.code, ended.out) == (2, "")
        assert {path.name for path in tmp_path.iterdir()} <= {"small.yaml"}
        assert [*machine.rglob("*")] == []
        assert online.runs == []
        assert not any(key in line for key in (KEY, "9" * 40))
        return line.removeprefix(f"error: W&B: the server {online.url} ")

    return refused


@pytest.mark.nightly
def test_a_wrong_key_or_entity_ends_a_command_before_it_begins(refused, monkeypatch):
    assert refused(*RUN, "tracking.entity=nobody") == NO_ENTITY
    monkeypatch.setenv("WANDB_ENTITY", "nobody")
    for name, value in AGENT.items():
        monkeypatch.setenv(name, value)
    assert refused(*RUN) == NO_ENTITY
    for name in (*AGENT, "WANDB_ENTITY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_API_KEY", "9" * 40)
    assert refused("-m", *RUN, "tracking.mode=auto", "precision=fp32,amp_bf16") == KEY_REFUSED
    Path("small.yaml").write_text(
        "{program: train.py, method: grid, parameters: {model: {value: mlp_small}, precision: {values: [fp32]}}}"
    )
    assert refused("sweep", "small.yaml") == KEY_REFUSED


def test_a_server_is_not_asked_offline_and_in_trouble_refuses_nothing(train, online):
    assert train(*RUN, "tracking.mode=offline", "tracking.entity=nobody", "output_dir=offline").code == 0
    assert online.recorded.requests == []
    asked = Fault(on="Viewer", status=429, times=1)
    online.faults.append(asked)
    assert train(*RUN, "tracking.entity=team").code == 0
    assert asked.times == 0
    run = only_run()
    assert run.record.status == "completed"
    assert [there.rows for there in online.runs] == [run.history]
