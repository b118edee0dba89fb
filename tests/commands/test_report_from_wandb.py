"""`ampsweep report wandb://...` and `--publish`: the comparison from runs on a W&B server, and back to it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import all_runs
from wandb_server import WandbServer

from ampsweep.commands import main as cli

FILES = ("comparison.json", "comparison.md")


@dataclass(frozen=True)
class Online:
    """A server with the runs of a sweep, and the directory that they were trained in."""

    server: WandbServer
    directory: Path

    def asked(self) -> list[str]:
        """Names of the queries since the last call."""
        with self.server.lock:
            found = [request.operation for request in self.server.recorded.requests if request.operation]
            self.server.recorded.requests.clear()
        return found


@pytest.fixture
def online(swept_online, machine, monkeypatch) -> Online:
    """A finished sweep on a server where one is logged in."""
    server, directory = swept_online
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.recorded.views.clear()
    server.recorded.requests.clear()
    return Online(server, directory)


@pytest.fixture
def report(capsys):
    """What the command prints, as (stdout, lines on stderr); it must end well."""

    def report(*arguments):
        assert cli.main(["report", *map(str, arguments)]) == 0
        out, err = capsys.readouterr()
        return out, err.splitlines()

    return report


@pytest.fixture
def refused(capsys):
    """The sentence of a command that is refused."""

    def refused(*arguments):
        assert cli.main(["report", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    return refused


def test_a_comparison_from_the_server_is_that_of_the_records(online, report, tmp_path):
    local, _ = report(online.directory)
    place = tmp_path / "wandb_reports/team/mine"
    remote, (said,) = report("wandb://team/mine")
    assert said == f"wandb://team/mine: 3 runs loaded, 0 unchanged, in {place / 'all'}"
    assert remote == local
    assert "peak memory of fp32 " in remote
    group = f"train_{online.directory.name}"
    of_group, _ = report(f"wandb://team/mine?group={group}")
    assert of_group == local
    (workload,) = json.loads((place / "all/comparison.json").read_text())["workloads"]
    copies = {run["run_id"]: run["directory"] for run in workload["runs"]}
    arms = workload["arms"]
    assert [arm["prediction_error_pct"] for arm in arms] == [0, None, 0], (
        "predicted beside measured; tf32 did not train"
    )
    for name in FILES:
        expected = (online.directory / name).read_text()
        for run in all_runs(online.directory):
            expected = expected.replace(run.directory.name, copies[run.record.run_id])
        assert (place / "all" / name).read_text() == expected
        assert (place / f"group-{group}" / name).read_text() == expected
    offline, _ = report(place / "all")
    assert offline == local, "what was loaded is a directory of runs like any other"


def test_runs_that_are_there_are_not_loaded_again(online, report, tmp_path):
    first, _ = report("wandb://team/mine", "--output", tmp_path / "here", "--format", "json")
    assert "RunParquetHistory" in online.asked()
    second, (said,) = report("wandb://team/mine", "--output", tmp_path / "here", "--format", "json")
    assert said.startswith("wandb://team/mine: 0 runs loaded, 3 unchanged")
    assert set(online.asked()) == {"Viewer", "GetDefaultEntity", "Runs"}
    assert json.loads(second) == json.loads(first)


def test_every_publication_is_a_new_report_and_a_new_workspace(online, report):
    out, said = report(online.directory, "--publish")
    pages = out.splitlines()[-2:]
    assert (said, [page.split(": ")[0] for page in pages]) == ([], ["report", "workspace"])
    assert all(f": {online.server.url}/team/mine" in page for page in pages)
    _, (_, *more) = report(f"wandb://team/mine?group=train_{online.directory.name}", "--publish", "--format", "json")
    assert len({*pages, *more}) == 4
    assert sorted(view.type for view in online.server.recorded.views) == ["project-view"] * 2 + ["runs"] * 2
    of_group = [run for run in online.server.runs if run.attributes.get("jobType") == "comparison"]
    assert len(of_group) == 1, "it is that of the sweep"
    report("wandb://team/mine", "--publish")
    assert len([run for run in online.server.runs if run.attributes.get("jobType") == "comparison"]) == 2


def test_a_wrong_address_or_key_is_one_sentence(online, refused, monkeypatch):
    assert refused("wandb://team") == (
        "error: wandb://team: not of the form wandb://ENTITY/PROJECT, wandb://ENTITY/PROJECT/SWEEP or "
        "wandb://ENTITY/PROJECT?group=NAME"
    )
    assert refused("wandb://team/none") == "error: wandb://team/none: no such project, or not for this API key"
    monkeypatch.setenv("WANDB_API_KEY", "9" * 40)
    assert refused("wandb://team/mine").startswith("error: wandb://team/mine: W&B: the server ")
    assert not Path("wandb_reports").exists()


def test_only_runs_of_a_server_go_somewhere_else(swept, refused, tmp_path):
    assert refused(swept.directory, "--output", tmp_path / "x") == (
        f"error: --output {tmp_path / 'x'}: is for the runs at one wandb://... address"
    )


def test_what_cannot_be_published_is_said(swept, refused, monkeypatch, capsys):
    assert cli.main(["report", str(swept.directory), "--publish"]) == 2
    assert capsys.readouterr().err == (
        "error: --publish: none of the runs is on a W&B server; `ampsweep sync DIR` sends them there\n"
    )
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.delitem(sys.modules, "ampsweep.report.wandb.views")
    assert refused(swept.directory, "--publish") == (
        "error: --publish needs the optional package wandb-workspaces: pip install -e '.[publish]'"
    )
