"""The server that the other tests rely on: the client reads from it what was sent there, and nothing else."""

import math
from pathlib import Path

import pytest
import wandb

from wandb_server import ENTITY, Fault, WandbServer


@pytest.fixture
def server(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name, value in {**wandb_server.environment, "WANDB_MODE": "online", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield wandb_server
    wandb.teardown()


def begin(**more):
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    return wandb.init(project="p", settings=settings, **more)


def test_the_public_api_returns_what_a_run_has_sent(server, tmp_path):
    (tmp_path / "weights").write_text("hello")
    with begin(id="one", config={"lr": 0.1, "arm": "fp32"}, group="g", job_type="j", tags=["t"]) as run:
        for step in range(30):
            run.log({"step": step, "loss": 0.1 * step, "odd": math.inf if step % 2 else math.nan})
        run.log_artifact(wandb.Artifact("weights", type="model", metadata={"step": 30})).wait()
        artifact = wandb.Artifact("weights", type="model")
        artifact.add_file("weights")
        run.log_artifact(artifact)
    with begin(id="two", config={"lr": 0.2}):
        pass
    api = wandb.Api()
    assert [run.name for run in api.runs(f"{ENTITY}/p")] == ["one", "two"]
    (found,) = api.runs(f"{ENTITY}/p", filters={"$and": [{"config.lr": 0.1}, {"group": "g"}, {"tags": "t"}]})
    assert (found.id, found.state, found.job_type, found.config) == ("one", "finished", "j", {"lr": 0.1, "arm": "fp32"})
    rows = list(found.scan_history(page_size=7))
    assert [row["loss"] for row in rows] == [0.1 * step for step in range(30)]
    assert [row["odd"] for row in rows] == ["NaN", "Infinity"] * 15, "as W&B writes them"
    assert [row["step"] for row in found.history(keys=["step"], samples=10, pandas=False)] == list(range(0, 30, 3))
    assert {file.name for file in found.files()} >= {"config.yaml", "wandb-summary.json"}
    assert [(one.name, one.aliases, one.state) for one in found.logged_artifacts()] == [
        ("weights:v0", [], "COMMITTED"),
        ("weights:v1", ["latest"], "COMMITTED"),
    ]
    there = api.artifact(f"{ENTITY}/p/weights:latest").download(str(tmp_path / "there"))
    assert (Path(there) / "weights").read_text() == "hello"
    with pytest.raises(ValueError, match="Could not find"):
        len(api.runs(f"{ENTITY}/nothing-here")[0])


def test_a_resumed_run_goes_on_where_the_server_has_it(server):
    for steps in (range(3), range(3, 5)):
        with begin(id="one", resume="allow") as run:
            for step in steps:
                run.log({"step": step})
    (run,) = server.runs
    assert [row["step"] for row in run.rows] == [0, 1, 2, 3, 4]
    assert [row["_step"] for row in run.history] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("file_stream", status=500, times=1),
        Fault("file_stream", status=0, times=1),
        Fault("file_stream", status=0, is_heard=True, times=1),
        Fault("UpsertBucket", status=429, times=1),
        Fault("graphql|file_stream", status=200, delay_s=0.2),
    ],
    ids=["refused", "dropped", "dropped when it was heard", "told to wait", "slow"],
)
def test_a_fault_strikes_its_target_and_the_client_recovers(server, fault):
    with server.failing(fault), begin() as run:
        for step in range(5):
            run.log({"step": step})
    (run,) = server.runs
    assert [row["step"] for row in run.rows] == list(range(5))
    assert run.state == "finished"
    struck = [request for request in server.recorded.requests if request.status == fault.status]
    assert len(struck) >= (1 if fault.times == 0 else 5)


def test_it_refuses_connections_until_it_is_back(server):
    with begin() as run:
        run.log({"step": 0})
        server.refuse()
        run.log({"step": 1})
        server.accept()
    assert [row["step"] for row in server.runs[0].rows] == [0, 1]


def test_a_wrong_key_is_no_key(server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "1" * 40)
    with pytest.raises(wandb.errors.AuthenticationError):
        wandb.Api()
    assert {request.status for request in server.recorded.requests} == {401}


def test_what_it_does_not_know_is_an_error(server):
    with pytest.raises(Exception, match="Cannot query field 'weather'"):  # wandb's own has no public name
        wandb.Api()._service_api.execute_graphql("query { weather }")
