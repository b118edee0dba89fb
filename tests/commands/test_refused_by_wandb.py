"""A wrong API key or entity of W&B is one sentence, exit code 2 and nothing else; a server in trouble is none."""

from pathlib import Path

import pytest
from command_line import all_runs
from wandb_server import KEY, Fault

from ampsweep.commands.main import main as ampsweep

RUN = ("model=mlp_small", "trainer.steps=4", "trainer.log_every=2", "predict.with_runs=false")
WRONG = "9" * 40
FILE = """
program: train.py
method: grid
parameters:
  model: {value: mlp_small}
  precision: {values: [fp32, amp_bf16]}
  trainer.steps: {value: 4}
"""
KEY_REFUSED = "refuses the API key: user is not logged in; tracking.mode=offline trains without a server"
NO_ENTITY = "has no entity 'nobody', or not for this API key; tracking.mode=offline trains without a server"


@pytest.fixture
def refused(train, online, machine, tmp_path, capfd):
    """The sentence with which a command ends that is refused and leaves no trace."""

    def refused(*arguments, command=train):
        capfd.readouterr()
        ended = command(*arguments)
        code, out, err = (ended.code, ended.out, ended.err) if command is train else (ended, *capfd.readouterr())
        (line,) = err.splitlines()
        assert (code, out) == (2, "")
        assert {path.name for path in tmp_path.iterdir()} <= {"small.yaml"}
        assert [*machine.rglob("*")] == []
        assert online.runs == []
        assert not any(key in line for key in (KEY, WRONG))
        return line.removeprefix(f"error: W&B: the server {online.url} ")

    return refused


@pytest.mark.parametrize("sweep", [(), ("-m", "precision=fp32,amp_bf16")], ids=["single", "sweep"])
@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_wrong_key_ends_it_before_it_begins(mode, sweep, refused, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", WRONG)
    assert refused(*sweep, *RUN, f"tracking.mode={mode}") == KEY_REFUSED


@pytest.mark.parametrize("sweep", [(), ("-m", "tracking.entity=team,nobody")], ids=["single", "sweep"])
def test_a_wrong_entity_does_too(sweep, refused):
    assert refused(*(sweep or ["tracking.entity=nobody"]), *RUN) == NO_ENTITY


def test_an_entity_of_the_environment_counts(refused, monkeypatch):
    monkeypatch.setenv("WANDB_ENTITY", "nobody")
    assert refused(*RUN) == NO_ENTITY


def test_a_sweep_file_is_refused_as_a_whole(refused, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", WRONG)
    Path("small.yaml").write_text(FILE)
    assert refused("sweep", "small.yaml", command=lambda *arguments: ampsweep(arguments)) == KEY_REFUSED


def test_so_is_a_point_of_an_agent(start, wandb_server, tmp_path):
    agent = {"WANDB_SWEEP_ID": "sweep123", "WANDB_RUN_ID": "run45678", "WANDB_PROJECT": "agents"}
    ended = start(*RUN, **agent, **wandb_server.environment, WANDB_ENTITY="nobody").finish()
    assert (ended.code, ended.err) == (2, f"error: W&B: the server {wandb_server.url} {NO_ENTITY}\n")
    assert not list(tmp_path.iterdir())


def test_offline_nobody_is_asked(train, online):
    assert train(*RUN, "tracking.mode=offline", "tracking.entity=nobody").code == 0
    assert online.recorded.requests == []


@pytest.mark.parametrize("status", [500, 429])
def test_a_server_in_trouble_refuses_nothing(status, train, online):
    asked = Fault(on="Viewer", status=status, times=1)
    online.faults.append(asked)
    assert train(*RUN, "tracking.entity=team").code == 0
    assert asked.times == 0
    (run,) = all_runs()
    assert run.record.status == "completed"
    assert [there.rows for there in online.runs] == [run.history]
