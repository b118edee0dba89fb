"""The report and the workspace that are saved on a W&B server."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from shown_runs import on_gpu
from synthetic_records import Entry
from wandb_runs import record_run
from wandb_server import View, WandbServer

from ampsweep.analysis.comparison import compare
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.dashboard import curve_keys
from ampsweep.report.histories import read_histories
from ampsweep.report.panels import PANELS

pytest.importorskip("wandb_workspaces", reason="needs wandb-workspaces, of the extra `publish`")
from ampsweep.report.wandb.views import save_views

ADDRESS = "wandb://team/mine?group=it%27s%20a%3D%22group%22"

Publish = Callable[[Sequence[Entry]], dict[str, str]]


@pytest.fixture
def server(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WandbServer:
    """Someone who is logged in, and a project."""
    for name, value in {**wandb_server.environment, "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    record_run(wandb_server, "id0", None)
    return wandb_server


@pytest.fixture
def publish(server: WandbServer, tmp_path: Path) -> Publish:
    """Publish runs; returns the pages' addresses."""

    def publish(entries: Sequence[Entry]) -> dict[str, str]:
        compared = Compared(
            compare(entries, baseline="fp32", margin_pct=1.0), entries, read_histories(entries, curve_keys())
        )
        document = comparison_document(compared, tmp_path)
        return dict(line.split(": ", 1) for line in save_views(compared, document, ADDRESS))

    return publish


def pairs(num_seeds: int) -> list[Entry]:
    return [on_gpu(arm, seed, step_ms=ms) for seed in range(num_seeds) for arm, ms in (("fp32", 100), ("amp_bf16", 50))]


def saved(server: WandbServer, type: str) -> tuple[View, dict[str, Any]]:
    (view,) = [view for view in server.recorded.views if view.type == type]
    return view, json.loads(view.spec)


def sections(workspace: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Heading -> title -> what a panel shows."""
    found = workspace["section"]["panelBankConfig"]["sections"]
    return {
        one["name"]: {panel["config"].get("chartTitle"): panel["config"] for panel in one["panels"]} for one in found
    }


def texts(report: dict[str, Any]) -> list[str]:
    return [block["content"] for block in report["blocks"] if block["type"] == "markdown-block"]


def grids(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [block["metadata"] for block in report["blocks"] if block["type"] == "panel-grid"]


def chosen(runs: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    return {one["key"]["name"]: (one["op"], one["value"]) for one in runs["filters"]["filters"]}


def test_a_workspace_has_live_panels_that_say_what_they_plot(server, publish):
    report = publish(pairs(3))["report"]
    view, workspace = saved(server, "project-view")
    assert view.title.startswith(f"Precision of it_s a__group_ {datetime.now():%Y-%m-%d}")
    shown = sections(workspace)
    assert list(shown) == ["About", "Memory", "Speed", "Device"]
    assert f"]({report})" in shown.pop("About")[None]["value"]
    raw = {panel.title: panel for panel in PANELS if panel.kind in ("curves", "by_arm", "stack")}
    for found in shown.values():
        assert found.keys() <= raw.keys(), "no saving, gain or gap: W&B knows no baseline"
        for title, panel in found.items():
            assert tuple(panel["metrics"]) == raw[title].metrics
    (runs,) = workspace["section"]["runSets"]
    assert chosen(runs) == {"jobType": ("!=", "comparison"), "group": ("IN", ['it\'s a="group"'])}
    assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]
    colours = workspace["section"]["customRunColors"]
    assert set(colours.values()) == {"#999999", "#56b4e9"}, "those of the arms in every report"


def test_arms_of_one_mode_have_colours_of_their_own(server, publish):
    scales = (65536, 1024, 256)
    publish([*pairs(3), *(on_gpu(f"amp_fp16+init_scale={scale}", seed) for scale in scales for seed in range(3))])
    _, workspace = saved(server, "project-view")
    colours = workspace["section"]["customRunColors"]
    assert len(colours) == len(set(colours.values())) == 5


def test_a_report_has_the_verdict_and_the_differences(server, publish):
    address = publish(pairs(3))["report"]
    view, report = saved(server, "runs")
    assert address.startswith(f"{server.url}/team/mine/reports/Precision-of-it_s-a__group_-")
    assert address.endswith(view.id)
    assert "**Train in amp_bf16" in texts(report)[0]
    assert texts(report)[1:-1] == [f"## {name}" for name in ("Against the baseline", "Memory", "Speed", "Device")]
    differences, *live = grids(report)
    (comparison,) = [run for run in server.runs if run.attributes.get("jobType") == "comparison"]
    assert chosen(differences["runSets"][0]) == {"name": ("=", comparison.name)}
    panels = differences["panelBankSectionConfig"]["panels"]
    figures = {key: panel["config"]["chartTitle"] for panel in panels for key in panel["config"].get("mediaKeys", ())}
    assert figures["panels/memory-saved"] == "Peak memory saved"
    assert figures["panels/speedup"] == "Speedup"
    assert "panels/train-loss" not in figures, "live"
    assert set(figures) <= set(comparison.summary)
    assert len(panels) == len(figures) + 1
    assert '"arms"' in json.dumps(panels[-1]["config"])
    for grid in live:
        (runs,) = grid["runSets"]
        assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]
        mode = f"{runs['id']}-config:arm.value"
        assert grid["customRunColors"] == {f"{mode}:fp32": "#999999", f"{mode}:amp_bf16": "#56b4e9"}
        assert grid["panelBankSectionConfig"]["panels"]


def test_panels_over_a_size_are_over_the_one_that_was_varied(server, publish):
    entries: list[Entry] = []
    for hidden in (64, 128):
        for directory, record in pairs(1):
            record.config["model"] = {"hidden_size": hidden}
            record.pair_key, record.identity.model_size = f"of {hidden}", hidden**2
            entries.append((directory.with_name(f"{directory.name}-{hidden}"), record))
    publish(entries)
    memory = sections(saved(server, "project-view")[1])["Memory"]["Peak memory against size"]
    assert memory["xAxis"] == "config:config.value.model.hidden_size", "the resolved config is one value of W&B's"
    assert memory["yAxis"] == "summary:memory/peak_allocated_gib"
