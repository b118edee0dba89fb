"""The workspace and the report on a W&B server: what is saved, and that people's changes stay."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shown_runs import dashboard_of, on_gpu
from synthetic_records import Entry
from wandb_runs import record_run
from wandb_server import View, WandbServer

from ampsweep.metrics import METRICS
from ampsweep.report.panels import PANELS
from ampsweep.tracking.wandb.api import wandb_api
from ampsweep.tracking.wandb.selection import Selection

pytest.importorskip("wandb_workspaces", reason="needs wandb-workspaces, of the extra `publish`")
from ampsweep.report.wandb.save_views import SavedPage, publish_views
from ampsweep.report.wandb.view_merge import PagePart, digests, merge
from ampsweep.report.wandb.workspace_view import WorkspaceView

GROUP = Selection("team", "mine", groups=('it\'s a="group"',))
REPORT = "http://127.0.0.1/report"

Publish = Callable[[Sequence[Entry]], list[SavedPage]]


def panels_of(workspace: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Heading -> id -> panel."""
    sections = workspace["section"]["panelBankConfig"]["sections"]
    return {section["name"]: {panel["__id__"]: panel for panel in section["panels"]} for section in sections}


def runs_of(workspace: dict[str, Any]) -> dict[str, Any]:
    (runs,) = workspace["section"]["runSets"]
    return runs


def test_a_workspace_has_the_specified_panels_in_sections():
    sections = panels_of(WorkspaceView.of(GROUP, PANELS, REPORT).spec)
    assert list(sections) == ["About", "Overall", "Memory", "Speed", "Parity", "Gradient scaler", "Device"]
    made = {id.removeprefix("ampsweep-"): panel for found in sections.values() for id, panel in found.items()}
    assert made.keys() - {"about"} == {panel.key for panel in PANELS if panel.kind != "changes"}
    for panel in PANELS:
        if panel.key in made:
            shown = made[panel.key]["config"]
            shows_effect = panel.kind in ("front", "pairs", "effects_against_size")
            assert (shown["chartTitle"] == panel.title) != shows_effect, "what it shows are the runs' own values"
            named = shown.get("metrics") or [shown["yAxis"].removeprefix("summary:")]
            assert tuple(named) == (panel.metrics if panel.kind != "front" else panel.metrics[1:2])
            assert set(named) <= METRICS.keys()
    scale = made["scale"]["config"]
    assert (scale["xAxis"], scale["yLogScale"]) == ("step", True)
    assert made["speedup"]["config"]["xAxis"] == "config:seed.value", "the runs of a pair stand one above the other"
    assert made["front"]["config"]["xAxis"] == "summary:perf/step_ms"
    assert made["memory-against-size"]["config"]["xAxis"] == "config:batch_size.value"


def test_runs_are_chosen_by_group_and_grouped_by_precision_mode():
    runs = runs_of(WorkspaceView.of(GROUP, PANELS, REPORT).spec)
    assert runs["grouping"] == [{"section": "config", "name": "precision_mode.value"}]
    chosen = {one["key"]["name"]: (one["op"], one["value"]) for one in runs["filters"]["filters"]}
    assert chosen == {"jobType": ("!=", "comparison"), "group": ("IN", list(GROUP.groups))}


@pytest.fixture
def server(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WandbServer:
    """Someone who is logged in, and a project."""
    for name, value in {**wandb_server.environment, "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    record_run(wandb_server, "id0", None)
    return wandb_server


@pytest.fixture
def publish_runs(server: WandbServer, tmp_path: Path) -> Publish:
    def publish_runs(entries: Sequence[Entry]) -> list[SavedPage]:
        with wandb_api(GROUP) as api:
            return publish_views(dashboard_of(entries, tmp_path), GROUP, api)

    return publish_runs


def pairs(num_seeds: int) -> list[Entry]:
    return [on_gpu(arm, seed, step_ms=ms) for seed in range(num_seeds) for arm, ms in (("fp32", 100), ("amp_bf16", 50))]


def test_panels_over_a_size_are_over_the_one_that_was_varied(server, publish_runs):
    entries: list[Entry] = []
    for hidden in (64, 128):
        for directory, record in pairs(1):
            record.config["model"] = {"hidden_size": hidden}
            record.pair_key, record.identity.model_size = f"of {hidden}", hidden**2
            entries.append((directory.with_name(f"{directory.name}-{hidden}"), record))
    publish_runs(entries)
    found = {id: panel for of in panels_of(saved(server, "project-view")[1]).values() for id, panel in of.items()}
    shown = found["ampsweep-speedup-against-size"]["config"]
    assert shown["xAxis"] == "config:config.value.model.hidden_size", "the resolved config is one value of W&B's"
    assert shown["yAxis"] == "summary:perf/step_ms"


def saved(server: WandbServer, type: str) -> tuple[View, dict[str, Any]]:
    (view,) = [view for view in server.recorded.views if view.type == type]
    return view, json.loads(view.spec)


def num_saves(server: WandbServer) -> int:
    return sum(one.operation == "SaveView" for one in server.recorded.requests)


def texts(report: dict[str, Any]) -> list[str]:
    return [block["content"] for block in report["blocks"] if block["type"] == "markdown-block"]


def grids(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [block["metadata"] for block in report["blocks"] if block["type"] == "panel-grid"]


def test_pages_are_saved_once_and_then_brought_up_to_date(server, publish_runs):
    report, workspace = publish_runs(pairs(1))
    view, spec = saved(server, "runs")
    assert "1 of 1 pair completed and 3 are needed" in texts(spec)[0]
    assert view.title == "Precision of it_s a__group_"
    assert report.url == f"{server.url}/team/mine/reports/Precision-of-it_s-a__group_--{view.id.rstrip('=')}"
    assert workspace.url == f"{server.url}/team/mine?nw={saved(server, 'project-view')[0].name[3:-2]}"
    assert (
        report.url
        in saved(server, "project-view")[1]["section"]["panelBankConfig"]["sections"][0]["panels"][0]["config"]["value"]
    )
    for grid in grids(spec):
        assert grid["runSets"][0]["grouping"] == [{"section": "config", "name": "precision_mode.value"}]
        assert grid["panelBankSectionConfig"]["panels"]
    assert [text.split("\n")[0] for text in texts(spec)[1:-1]] == [
        *("## Overall", "## Memory", "## Speed", "## Parity", "## Device")
    ]

    assert publish_runs(pairs(1)) == [report, workspace]
    assert num_saves(server) == 2, "nothing has changed"

    assert publish_runs(pairs(3)) == [report, workspace]
    assert num_saves(server) == 3, "the verdict has"
    assert "**Train in amp_bf16" in texts(saved(server, "runs")[1])[0]


def test_what_people_have_changed_stays_the_rest_is_updated(server, publish_runs):
    publish_runs(pairs(1))
    view, workspace = saved(server, "project-view")
    bank = workspace["section"]["panelBankConfig"]
    sections = bank["sections"]
    panels_of(workspace)["Memory"]["ampsweep-memory-saved"]["config"]["chartTitle"] = "Theirs"
    bank["panelConfigOverrides"] = {"__custom_panel__:ampsweep-speedup": {"chartTitle": "Theirs"}}
    sections[4]["panels"].remove(panels_of(workspace)["Parity"]["ampsweep-loss-gap"])
    theirs = {"__id__": "theirs", "viewType": "From the future", "config": {"unknown": [1, None]}}
    sections[2]["panels"].insert(0, theirs)
    sections.insert(0, {**sections[1], "name": "Theirs", "panels": [{**theirs, "__id__": "second"}], "isOpen": False})
    runs_of(workspace)["grouping"] = []
    runs_of(workspace)["runFeed"]["pageSize"] = 100
    workspace["section"]["unknown"] = {"ref": {"id": "x"}}
    view.spec, view.title = json.dumps(workspace), "Theirs now"
    before = json.loads(view.spec)

    some = pairs(3)
    for _, record in some:
        record.summary["perf/mfu_pct"] = 40.0  # a panel that had nothing to show
        del record.summary["device/power_w"]  # and one that has nothing any more
    publish_runs(some)
    view, after = saved(server, "project-view")
    assert view.title == "Theirs now"
    mfu = panels_of(after)["Speed"]["ampsweep-mfu"]
    assert mfu["config"]["metrics"] == ["perf/mfu_pct"]
    expected = panels_of(before)
    expected["Speed"]["ampsweep-mfu"] = mfu
    del expected["Device"]["ampsweep-power"]
    expected["About"] = panels_of(after)["About"]
    assert panels_of(after) == expected
    assert list(panels_of(after)["Speed"]) == [*panels_of(before)["Speed"], "ampsweep-mfu"], "in their order"
    assert runs_of(after) == runs_of(before)
    assert after["section"]["unknown"] == before["section"]["unknown"]

    publish_runs(some)
    assert saved(server, "project-view")[1] == after


def test_what_people_have_written_into_the_report_stays(server, publish_runs):
    publish_runs(pairs(1))
    view, report = saved(server, "runs")
    note = {"type": "paragraph", "children": [{"text": "We chose bfloat16."}]}
    report["blocks"].insert(1, note)
    (heading,) = [block for block in report["blocks"] if block.get("content", "").startswith("## Speed")]
    heading["content"] = heading["content"].replace("## Speed", "## Fast?")
    (memory,) = [place for place, text in enumerate(report["blocks"]) if text.get("content", "").startswith("## Mem")]
    del report["blocks"][memory + 1]
    view.spec = json.dumps(report)

    publish_runs(pairs(3))
    _, after = saved(server, "runs")
    assert after["blocks"][1] == note
    assert [text.split("\n")[0] for text in texts(after)[1:-1]] == [
        *("## Overall", "## Memory", "## Fast?", "## Parity", "## Device")
    ]
    assert len(grids(after)) == len(grids(report)) == 4
    assert "**Train in amp_bf16" in texts(after)[0], "the verdict is ours, and nobody has changed it"


def test_a_page_whose_note_is_gone_is_theirs(server, publish_runs):
    publish_runs(pairs(1))
    for view in server.recorded.views:
        view.spec = view.spec.replace("[//]: # (ampsweep about", "[//]: # (")
    before = [view.spec for view in server.recorded.views]
    for page in publish_runs(pairs(3)):
        assert page.left == "left as it is: somebody has taken away its note about `ampsweep report`"
        assert page.url.startswith(server.url)
    assert [view.spec for view in server.recorded.views] == before


def part(key: str | None, text: str, where: str = "") -> PagePart:
    return PagePart(key, {"text": text, "place": text}, {"text": text}, where)


def test_merging_knows_new_from_deleted_and_ours_from_theirs():
    first = [part("a", "1", "A"), part("b", "1", "A"), part("c", "1", "B"), part("d", "1", "B")]
    there = [part(None, "theirs", "A"), first[0], part("b", "changed", "A"), first[3]]  # c has been deleted
    wanted = [part("a", "2", "A"), part("b", "2", "A"), part("c", "2", "B"), part("e", "2", "A")]  # without d
    parts, now = merge(there, wanted, digests(first))
    assert [(one.key, one.content) for one in parts] == [
        (None, {"text": "theirs", "place": "theirs"}),
        ("a", {"text": "2", "place": "1"}),
        ("b", {"text": "changed", "place": "changed"}),
        ("e", {"text": "2", "place": "2"}),
    ]
    assert now.keys() == {"a", "b", "c", "e"}
    again, then = merge(parts, wanted, now)
    assert ([one.content for one in again], then) == ([one.content for one in parts], now)
