"""The comparison of a sweep is a run of its own on W&B: table, panels, page and verdict."""

import json
import time

import pytest
from command_line import only_sweep
from wandb_server import Sweep, WandbServer

from ampsweep.commands.main import main as ampsweep
from ampsweep.record import find_records
from ampsweep.record.parts import WandbFacts
from ampsweep.report.wandb.comparison_run import ComparisonPage, publish
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbProcess

SWEEP = ("-m", "model=mlp_small", "trainer.steps=3", "trainer.log_every=1", "device=cpu")


def comparisons(online: WandbServer):
    return [run for run in online.runs if run.attributes["jobType"] == "comparison"]


def test_a_sweep_ends_with_its_comparison_on_wandb(train, online, capfd, monkeypatch):
    ended = train(*SWEEP, "precision=fp32,tf32", "tracking.project=mine", "tracking.tags=[laptop,night]")
    directory = only_sweep()
    (run,) = comparisons(online)
    assert ended.code == 0
    assert ended.said[-1] == f"W&B: {online.url}/team/mine/runs/{run.name}"
    assert len(online.runs) == 3, "what the device cannot do is a run on W&B too"
    group = f"train_{directory.name}"
    assert {one.attributes["groupName"] for one in online.runs} == {group}
    assert run.attributes["displayName"] == f"comparison-{group}"
    assert {tuple(one.attributes["tags"]) for one in online.runs} == {("laptop", "night")}
    assert (run.state, run.project, run.config["baseline"]) == ("finished", "mine", "fp32")

    written = json.loads((directory / "comparison.json").read_text())
    (workload,) = written["workloads"]
    assert run.summary["verdict"] == workload["verdict"]["sentence"]
    assert run.summary["conclusion"].startswith("No conclusion about tf32")
    assert run.files[run.summary["comparison"]["path"]] == (directory / "comparison.html").read_bytes()
    arms = json.loads(run.files[run.summary["arms"]["path"]])
    rows = [dict(zip(arms["columns"], row, strict=True)) for row in arms["data"]]
    assert [(row["arm"], row["status"]) for row in rows] == [("fp32", "completed"), ("tf32", "unsupported")]
    assert [row["step_ms"] for row in rows] == [arm["step_ms"] for arm in workload["arms"]]
    runs = json.loads(run.files[run.summary["runs"]["path"]])
    assert len(runs["data"]) == len(find_records(directory).records)
    panels = [key for key in run.summary if key.startswith("panels/")]
    assert {"panels/memory-categories", "panels/train-loss"} <= set(panels)
    for key in panels:
        figure = json.loads(run.files[run.summary[key]["path"]])
        assert figure["data"]
        assert "layout" in figure

    assert ampsweep(["sync", str(directory)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(": complete, " in line for line in lines), "sync finds nothing to send"
    assert ampsweep(["report", "--wandb", str(directory)]) == 0
    assert capfd.readouterr().err == f"W&B: {run_url(online, run)}\n"
    assert comparisons(online) == [run], "sent again it takes the place of the first"
    # Those who report on a sweep may do so where its agents work.
    online.recorded.sweeps["team", "mine", "s1"] = Sweep("team", "mine", "s1", "method: grid\nparameters: {}\n")
    (path, record), *_ = find_records(directory).records
    record.wandb.sweep = "s1"
    record.write(path)
    for name, value in {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "of-an-agent", "WANDB_PROJECT": "another"}.items():
        monkeypatch.setenv(name, value)
    assert ampsweep(["report", "--wandb", str(directory)]) == 0
    assert capfd.readouterr().err == f"W&B: {run_url(online, run)}\n"
    assert comparisons(online) == [run]
    assert run.attributes.get("sweep") is None
    online.refuse()
    assert ampsweep(["report", "--wandb", str(directory)]) == 2
    assert f"W&B: the W&B server {online.url} cannot be reached" in capfd.readouterr().err


def test_a_search_ends_with_its_comparison_there_too(train, online):
    sizes = ("data=synthetic", "data.in_features=32", "data.out_features=32", "data.num_batches=1")
    search = ("experiment=max_batch", "model=mlp_small", *sizes, "trainer.memory_limit_gib=0.002", "trainer.steps=6")
    assert train(*search, "device=cpu", "precision=fp32").code == 0
    (run,) = comparisons(online)
    (found,) = json.loads((only_sweep("outputs/max_batch") / "comparison.json").read_text())["searches"]
    assert run.summary["verdict"] == found["sentence"]
    table = json.loads(run.files[run.summary["largest_batches"]["path"]])
    (fp32,) = (dict(zip(table["columns"], row, strict=True)) for row in table["data"])
    assert fp32["batch_size"] == fp32["predicted_batch_size"] == run.summary["fp32/predicted_batch_size"] > 64
    assert fp32["prediction_error_pct"] == 0
    assert "arms" not in run.summary, "nothing else was compared"


def run_url(online, run):
    return f"{online.url}/team/mine/runs/{run.name}"


def test_a_server_that_is_gone_by_then_costs_seconds(online, tmp_path):
    (tmp_path / "comparison.html").write_text("<p>page")
    page = ComparisonPage("comparison-1", "comparison", {}, {}, {}, {}, tmp_path / "comparison.html")
    with WandbProcess() as process:
        address = process.address
        online.refuse()
        began = time.monotonic()
        with pytest.raises(WandbError, match="cannot be reached"):
            address.call(publish, page, WandbFacts(project="mine", group="group"), tmp_path, 2.0, True, silence_s=30.0)
        assert time.monotonic() - began < 15
