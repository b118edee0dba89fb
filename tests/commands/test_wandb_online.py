"""A sweep on a W&B server: its comparison is a run of its own; `ampsweep report wandb://...` and `--publish`."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Swept
from recorded_sweeps import trained
from wandb_server import Sweep, WandbServer

FILES, PANELS = ("comparison.json", "comparison.md"), ("panels/memory-categories", "panels/train-loss")
SWEEP = (
    *("-m", "model=mlp_small", "trainer.steps=6", "trainer.log_every=2", "device=cpu", "tracking.mode=online"),
    *("tracking.project=mine", "tracking.tags=[laptop,night]", "precision=fp32,amp_bf16,tf32"),
)


@pytest.fixture(scope="module")
def sweep_and_server(temporary, tmp_path_factory) -> Iterator[tuple[Swept, WandbServer]]:
    """A finished sweep and the server that has it: tf32 is not trained."""
    directory, home = tmp_path_factory.mktemp("online"), tmp_path_factory.mktemp("home")
    with WandbServer() as server:
        yield trained(SWEEP, directory, home, temporary, server.environment), server


@pytest.fixture
def swept(sweep_and_server, machine, monkeypatch) -> Swept:
    """The sweep, where one is logged in to its server."""
    for name, value in sweep_and_server[1].environment.items():
        monkeypatch.setenv(name, value)
    return sweep_and_server[0]


@pytest.fixture
def server(sweep_and_server) -> WandbServer:
    return sweep_and_server[1]


def asked(server: WandbServer) -> set[str]:
    """Names of the queries since the last call."""
    with server.lock:
        found = {request.operation for request in server.recorded.requests if request.operation}
        server.recorded.requests.clear()
    return found


def comparisons(server: WandbServer):
    return [run for run in server.runs if run.attributes.get("jobType") == "comparison"]


def test_a_sweep_ends_with_its_comparison_on_wandb(swept, server, ampsweep, monkeypatch):
    (run,) = comparisons(server)
    url = f"{server.url}/team/mine/runs/{run.name}"
    assert (swept.ended.code, swept.ended.said[-1]) == (0, f"W&B: {url}")
    assert len(server.runs) == 4, "the arm that the device cannot do is a run on W&B too"
    group = f"train_{swept.directory.name}"
    assert {run.attributes["groupName"] for run in server.runs} == {group}
    assert run.attributes["displayName"] == f"comparison-{group}"
    assert {tuple(run.attributes["tags"]) for run in server.runs} == {("laptop", "night")}
    assert (run.state, run.project, run.config["baseline"]) == ("finished", "mine", "fp32")

    (workload,) = json.loads((swept.directory / "comparison.json").read_text())["workloads"]
    assert run.summary["verdict"] == workload["verdict"]["sentence"]
    assert run.files[run.summary["comparison"]["path"]] == (swept.directory / "comparison.html").read_bytes()
    files = {key: json.loads(run.files[run.summary[key]["path"]]) for key in ("arms", "runs", *PANELS)}
    rows = [dict(zip(files["arms"]["columns"], row, strict=True)) for row in files["arms"]["data"]]
    assert [(row["arm"], row["peak_memory_bytes"]) for row in rows] == [
        (arm["arm"], arm["peak_memory_bytes"]) for arm in workload["arms"] if arm["arm"] != "tf32"
    ]
    assert len(files["runs"]["data"]) == 3
    assert all({"data", "layout"} <= files[panel].keys() for panel in PANELS)

    assert ampsweep("sync", swept.directory).out.count(": complete, ") == 4, "sync finds nothing to send"
    assert ampsweep("report", "--wandb", swept.directory).err == f"W&B: {url}\n"
    assert comparisons(server) == [run], "sent again it takes the place of the first"

    # A report may be made on a machine where agents work.
    server.recorded.sweeps["team", "mine", "s1"] = Sweep("team", "mine", "s1", "method: grid\nparameters: {}\n")
    for name, value in {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "of-an-agent", "WANDB_PROJECT": "another"}.items():
        monkeypatch.setenv(name, value)
    assert ampsweep("report", "--wandb", swept.directory).err == f"W&B: {url}\n"
    assert comparisons(server) == [run]
    assert run.attributes.get("sweep") is None


def test_a_comparison_from_the_server_is_that_of_the_records(swept, server, ampsweep, tmp_path):
    directory, place = tmp_path / swept.directory.name, tmp_path / "wandb_reports/team/mine"
    shutil.copytree(swept.directory, directory)
    (directory / "multirun.yaml").unlink()  # what was copied from W&B cannot be continued
    local = ampsweep("report", directory).out
    asked(server)
    remote = ampsweep("report", "wandb://team/mine")
    assert remote.err == f"wandb://team/mine: 3 runs loaded, 0 unchanged, in {place / 'all'}\n"
    assert "RunParquetHistory" in asked(server)
    assert remote.out == local
    group = f"train_{swept.directory.name}"
    assert ampsweep("report", f"wandb://team/mine?group={group}").out == local
    (workload,) = json.loads((place / "all/comparison.json").read_text())["workloads"]
    copies = {run["run_id"]: run["directory"] for run in workload["runs"]}
    assert [arm["prediction_error_pct"] for arm in workload["arms"]] == [0, None, 0], "tf32 did not train"
    for name in FILES:
        expected = (directory / name).read_text()
        for run in swept.runs:
            expected = expected.replace(run.directory.name, copies[run.record.run_id])
        assert (place / "all" / name).read_text() == expected
        assert (place / f"group-{group}" / name).read_text() == expected
    assert ampsweep("report", place / "all").out == local, "the copy is a directory of runs like any other"
    against = ampsweep("report", "--against", swept.directory, "wandb://team/mine")
    assert (against.code, "OLD and NEW are the same runs" in against.words) == (0, True)

    asked(server)
    again = ampsweep("report", "wandb://team/mine", "--output", place / "all", "--format", "json")
    assert again.err.startswith("wandb://team/mine: 0 runs loaded, 3 unchanged")
    assert asked(server) == {"Viewer", "GetDefaultEntity", "Runs"}


def test_what_cannot_be_read_or_published_is_one_sentence(swept, server, recorded, ampsweep, monkeypatch):
    def refusal(*arguments):
        ended = ampsweep("report", *arguments)
        assert (ended.code, ended.err[:7]) == (2, "error: ")
        return ended.err[7:]

    assert refusal("wandb://team").startswith("wandb://team: not of the form wandb://ENTITY/PROJECT, ")
    assert refusal("wandb://team/none") == "wandb://team/none: no such project, or not for this API key\n"
    assert not Path("wandb_reports").exists()
    local = recorded("arms").directory.glob("fp32-*")  # read only: several directories have no place for a report
    nowhere = "--publish: none of the runs is on a W&B server; `ampsweep sync DIR` sends them there\n"
    assert refusal(*local, "--publish") == nowhere
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.delitem(sys.modules, "ampsweep.report.wandb.views")
    needs = "--publish needs the optional package wandb-workspaces: pip install -e '.[publish]'\n"
    assert refusal(swept.directory, "--publish") == needs
