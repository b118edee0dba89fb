"""What W&B gets of runs and sweeps, and that a training does not depend on its server."""

import json
import signal
import sys

import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until
from wandb_file import read_wandb_file
from wandb_server import Fault

from ampsweep.standard_streams import copied_output
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.sync_run import complete_runs

RUN = ("model=mlp_small", "trainer.steps=4", "trainer.log_every=2")
SYNC = "send runs later with `ampsweep sync DIRECTORY`"


def tracked(run):
    return read_wandb_file(run.directory / run.record.wandb.directory)


def test_a_sweep_is_a_group_with_the_precision_mode_as_job_type(train):
    ended = train("-m", *RUN, "precision=fp32,amp_bf16", "tracking.mode=offline")
    assert ended.code == 0
    assert ended.said == [f"W&B: offline, as tracking.mode says; {SYNC}"], "once for the whole sweep"
    group = f"train_{only_sweep().name}"
    runs = all_runs()
    files = [tracked(run) for run in runs]
    assert [file.run.run_group for file in files] == [group, group]
    assert [file.run.job_type for file in files] == ["fp32", "amp_bf16"]
    assert [file.run.run_id for file in files] == [run.record.wandb.id for run in runs]
    assert len({file.run.run_id for file in files}) == 2
    for run, file in zip(runs, files, strict=True):
        assert file.run.project == "ampsweep"
        assert file.config["precision_mode"] == run.record.identity.precision_mode
        assert file.config["model"] == "mlp_small"
        own = {key: value for key, value in run.record.config["precision"].items() if key != "dtype"}
        assert file.config["config"]["precision"] == own, "the identity has the dtype"
        assert file.config["pair_key"] == run.record.pair_key
        assert file.history == run.history
        assert file.exit_code == 0
        sent = json.loads((run.directory / run.record.wandb.directory / "files/record.json").read_text())
        assert sent["prediction"] == run.record.prediction.as_json()
        assert sent["prediction"]["error_pct"] == 0, "predicted and measured are there before the run ends on W&B"


def test_what_a_run_prints_is_its_log(train):
    assert train(*RUN, "tracking.mode=offline", "tracking.console=true").code == 0
    run = only_run()
    kept = (run.directory / "output.log").read_text()
    assert "W&B: offline" in kept
    assert (run.directory / run.record.wandb.directory / "files/output.log").read_text() == kept
    assert train(*RUN, "tracking.mode=offline", "output_dir=silent").code == 0
    assert not (only_run("silent").directory / "output.log").exists()


def test_a_copy_of_what_is_printed_costs_no_line(tmp_path, capfd):
    with copied_output(tmp_path / "output.log"):
        print("one")
        print("two \ud800", file=sys.stderr)
        assert not sys.stdout.isatty()
    print("three")
    assert (tmp_path / "output.log").read_text() == "one\ntwo \\ud800\n"
    assert capfd.readouterr().out == "one\nthree\n"


def test_names_for_wandb_come_from_the_config(train):
    named = ("tracking.project=mine", "tracking.group=tuesday", "tracking.tags=[a,b]", "tracking.entity=team")
    assert train(*RUN, "tracking.mode=offline", *named).code == 0
    run = tracked(only_run()).run
    assert (run.project, run.run_group, list(run.tags), run.entity) == ("mine", "tuesday", ["a", "b"], "team")


def test_without_a_login_a_run_is_offline_and_tells_how_to_sync(train):
    ended = train(*RUN)
    assert ended.code == 0
    assert ended.said == [f"W&B: offline, since wandb is not logged in (`wandb login` or WANDB_API_KEY); {SYNC}"]
    assert only_run().record.wandb.mode == "offline"


def test_a_server_that_cannot_be_reached_costs_a_line(train, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    ended = train(*RUN)
    assert ended.code == 0
    run = only_run()
    why = "no connection to the server: Connection refused"
    assert ended.said == [
        "W&B: online, project ampsweep",
        f"W&B: lost ({why}); history.jsonl has every row, `ampsweep sync DIRECTORY` sends what W&B lacks",
    ]
    assert run.record.status == "completed"
    assert run.record.wandb.mode == "offline"
    assert len(run.history) == 2


@pytest.mark.parametrize(
    ("fails_then", "sent", "why"),
    [
        ("^$", 2, ""),
        ("", 0, " (the W&B server {} cannot be reached: the server does not answer)"),
        ("UpsertBucket", 0, " (not done in 2 s)"),
    ],
    ids=["back", "silent", "stuck"],
)
def test_what_a_sweep_lost_is_sent_at_its_end(fails_then, sent, why, train, wandb_server, monkeypatch):
    for name, value in wandb_server.environment.items():
        monkeypatch.setenv(name, value)
    call, fault = WandbAddress.call, Fault(on="UpsertBucket", delay_s=20.0)
    wandb_server.faults.append(fault)

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
    rest = f"{why.format(wandb_server.url)}; `ampsweep sync {only_sweep().resolve()}` sends the rest" if why else ""
    assert line == f"W&B: {sent} of 2 lost runs sent after all{rest}"
    there = {run.name: run.rows for run in wandb_server.runs}
    for run in all_runs() if sent else ():
        assert (there[run.record.run_id], run.record.wandb.error) == (run.history, None)
    assert len(there) == (sent and sent + 1), "and their comparison"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_of_a_wandb_agent_belongs_to_its_sweep(start, repository):
    """As `wandb agent` starts it: its command line, and its environment over what the config says."""
    agent = {
        "WANDB_SWEEP_ID": "sweep123",
        "WANDB_RUN_ID": "run45678",
        "WANDB_PROJECT": "agents",
        "WANDB_ENTITY": "team",
        "WANDB_MODE": "offline",
    }
    ended = start(*RUN, "precision=amp_fp16", "seed=2", "precision.init_scale=1024", **agent).finish()
    assert ended.code == 0
    assert ended.said == [f"W&B: offline, as WANDB_MODE says; {SYNC}"]
    run = only_run()
    assert run.record.wandb.id == "run45678"
    file = tracked(run)
    assert (file.run.run_id, file.run.sweep_id, file.run.project) == ("run45678", "sweep123", "agents")
    assert file.run.job_type == "amp_fp16"
    assert file.config["arm"] == "amp_fp16+init_scale=1024"
    assert file.history == run.history
