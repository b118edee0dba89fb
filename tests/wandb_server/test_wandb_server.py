"""The client reads from the tests' server what was sent there, and nothing else."""

import math
from pathlib import Path

import pytest
import wandb

from wandb_server import ENTITY, Fault


@pytest.fixture
def server(wandb_server, monkeypatch, tmp_path):
    for name, value in {**wandb_server.environment, "WANDB_MODE": "online", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield wandb_server
    wandb.teardown()


@pytest.mark.nightly
def begin(**more):
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    return wandb.init(project="p", settings=settings, **more)


def test_the_public_api_returns_what_a_run_has_sent(server, tmp_path):
    (tmp_path / "weights").write_text("hello")
    lost = [Fault("file_stream", status=0, is_heard=True, times=1), Fault("UpsertBucket", status=429, times=1)]
    server.faults += lost
    with begin(id="one", config={"lr": 0.1, "arm": "fp32"}, group="g", job_type="j", tags=["t"]) as run:
        for step in range(30):
            run.log({"step": step, "loss": 0.1 * step, "odd": math.inf if step % 2 else math.nan})
        artifact = wandb.Artifact("weights", type="model")
        artifact.add_file("weights")
        run.log_artifact(artifact)
    assert [fault.times for fault in lost] == [0, 0]
    with begin(id="one", resume="allow") as run:
        run.log({"step": 30})
    with begin(id="two", config={"lr": 0.2}):
        pass
    assert [row["_step"] for row in server.runs[0].history] == list(range(31))
    api = wandb.Api()
    assert [run.name for run in api.runs(f"{ENTITY}/p")] == ["one", "two"]
    (found,) = api.runs(f"{ENTITY}/p", filters={"$and": [{"config.lr": 0.1}, {"group": "g"}, {"tags": "t"}]})
    assert (found.id, found.state, found.job_type, found.config) == ("one", "finished", "j", {"lr": 0.1, "arm": "fp32"})
    rows = list(found.scan_history(page_size=7))
    assert [row["step"] for row in rows] == list(range(31))
    assert [row["odd"] for row in rows[:30]] == ["NaN", "Infinity"] * 15, "as W&B writes them"
    assert {file.name for file in found.files()} >= {"config.yaml", "wandb-summary.json"}
    there = api.artifact(f"{ENTITY}/p/weights:latest").download(str(tmp_path / "there"))
    assert (Path(there) / "weights").read_text() == "hello"
    with pytest.raises(Exception, match="Cannot query field 'weather'"):  # wandb's own has no public name
        api._service_api.execute_graphql("query { weather }")
