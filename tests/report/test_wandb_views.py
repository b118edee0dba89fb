"""The report and the workspace that are saved on a W&B server."""

import json
from datetime import datetime

import pytest
from shown_runs import on_gpu
from wandb_runs import record_run

from ampsweep.analysis.comparison import compare
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.histories import read_histories
from ampsweep.report.panels import PANELS, curve_keys

pytest.importorskip("wandb_workspaces", reason="needs wandb-workspaces, of the extra `publish`")
from ampsweep.report.wandb.views import save_views

ADDRESS = "wandb://team/mine?group=it%27s%20a%3D%22group%22"


@pytest.fixture
def server(online, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)  # where wandb leaves files
    record_run(online, "id0", None)
    return online


@pytest.fixture
def publish(server, tmp_path):
    def publish(entries):
        comparison = compare(entries, baseline="fp32", margin_pct=1.0)
        compared = Compared(comparison, entries, read_histories(entries, curve_keys()))
        document = comparison_document(compared, tmp_path)
        return dict(line.split(": ", 1) for line in save_views(compared, document, ADDRESS))

    return publish


def pairs(num_seeds):
    return [on_gpu(arm, seed, step_ms=ms) for seed in range(num_seeds) for arm, ms in (("fp32", 100), ("amp_bf16", 50))]


def saved(server, kind):
    (view,) = [view for view in server.recorded.views if view.type == kind]
    return view, json.loads(view.spec)


def panels(found):
    """Title -> config of the panels in a view, at any depth."""
    below = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    own = {found["config"].get("chartTitle"): found["config"]} if isinstance(found, dict) and "config" in found else {}
    return own | {title: config for part in below for title, config in panels(part).items()}


def assert_by_arm(runs):
    chosen = {found["key"]["name"]: (found["op"], found["value"]) for found in runs["filters"]["filters"]}
    assert chosen == {"jobType": ("!=", "comparison"), "group": ("IN", ['it\'s a="group"'])}
    assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]


@pytest.mark.nightly
def test_a_report_and_a_workspace_are_saved(server, publish):
    report_address = publish(pairs(3))["report"]
    view, workspace = saved(server, "project-view")
    assert view.title.startswith(f"Precision of it_s a__group_ {datetime.now():%Y-%m-%d}")
    section = workspace["section"]
    headings = [found["name"] for found in section["panelBankConfig"]["sections"]]
    assert headings == ["About", "Memory", "Speed", "Device"]
    shown = panels(section["panelBankConfig"])
    assert f"]({report_address})" in shown.pop(None)["value"]
    raw = {panel.title: [*panel.metrics] for panel in PANELS if panel.kind in ("curves", "by_arm", "stack")}
    assert {title: panel["metrics"] for title, panel in shown.items()}.items() <= raw.items(), "W&B knows no baseline"
    assert_by_arm(section["runSets"][0])
    assert set(section["customRunColors"].values()) == {"#999999", "#56b4e9"}

    view, report = saved(server, "runs")
    assert report_address.startswith(f"{server.url}/team/mine/reports/Precision-of-it_s-a__group_-")
    assert report_address.endswith(view.id)
    texts = [block["content"] for block in report["blocks"] if block["type"] == "markdown-block"]
    assert "**Train this in amp_bf16" in texts[0]
    assert texts[1:-1] == [f"## {name}" for name in ("Against the baseline", *headings[1:])]
    differences, *live = [block["metadata"] for block in report["blocks"] if block["type"] == "panel-grid"]
    (comparison,) = [run for run in server.runs if run.attributes.get("jobType") == "comparison"]
    assert differences["runSets"][0]["filters"]["filters"][0]["value"] == comparison.name
    figures = panels(differences["panelBankSectionConfig"])
    table = figures.pop(None)
    assert '"arms"' in json.dumps(table)
    keys = {title: panel["mediaKeys"] for title, panel in figures.items()}
    assert (keys["Peak memory saved"], keys["Speedup"]) == (["panels/memory-saved"], ["panels/speedup"])
    assert "Training loss" not in keys, "live"
    assert {key for (key,) in keys.values()} <= set(comparison.summary)
    for grid in live:
        (runs,) = grid["runSets"]
        assert_by_arm(runs)
        mode = f"{runs['id']}-config:arm.value"
        assert grid["customRunColors"] == {f"{mode}:fp32": "#999999", f"{mode}:amp_bf16": "#56b4e9"}
        assert panels(grid["panelBankSectionConfig"])


def test_a_varied_size_is_the_axis_and_arms_differ_in_colour(server, publish):
    entries = []
    for hidden in (64, 128):
        scaled = [on_gpu(f"amp_fp16+init_scale={scale}", 0) for scale in (65536, 1024, 256)]
        for directory, record in [*pairs(1), *scaled]:
            record.config["model"] = {"hidden_size": hidden}
            record.pair_key, record.identity.model_size = f"of {hidden}", hidden**2
            entries.append((directory.with_name(f"{directory.name}-{hidden}"), record))
    publish(entries)
    _, workspace = saved(server, "project-view")
    memory = panels(workspace)["Peak memory against size"]
    assert memory["xAxis"] == "config:config.value.model.hidden_size"
    assert memory["yAxis"] == "summary:memory/peak_allocated_gib"
    colours = workspace["section"]["customRunColors"]
    assert len(colours) == len(set(colours.values())) == 5
