"""A run on a W&B server besides its rows: attributes, config, summary, record, log, alerts and artifacts."""

import json
from dataclasses import replace

import pytest
from served import bits, train
from wandb_server import KEY

from ampsweep.records import read_history
from ampsweep.records.sections import Contamination, KeptWeights, StepPrediction, WandbFacts
from ampsweep.report.wandb.send_comparison import ComparisonPage, publish
from ampsweep.standard_streams import OUTPUT_NAME
from ampsweep.tracking.wandb.content import alerts

CONTAMINATED = {"contamination": Contamination(verdict="contaminated", reasons=["too warm", "busy"])}
ROWS = {2: {"train/loss": float("nan")}, 3: {"train/loss": 0.1 + 0.2, "train/lr": 1e-3}}


@pytest.fixture
def track(online, record, tmp_path):
    """Tracks three steps of the run, and returns it as the server has it."""

    def track(directory=tmp_path, **ending):
        tracking = record.config["tracking"] | {"mode": "online", "project": "mine", "tags": ["a", "b"]}
        train(record, directory, online.address, range(1, 4), rows=ROWS, ending={"summary": {}, **ending}, **tracking)
        return online.run(record)

    return track


def test_a_run_on_the_server_has_identity_rows_and_figures(track, record, online, tmp_path):
    record.config["tracking"]["notes"] = "why it was made"
    record.environment = {"python": "3.11", "git_commit": "abc", "flags": {"deterministic": False}}
    (tmp_path / OUTPUT_NAME).write_text("epoch 1\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.pt").write_bytes(b"weights")
    summary = {"train/loss": 0.25, "perf/step_ms": 0.1 + 0.2}
    run = track(summary=summary, prediction=StepPrediction(target="cpu", peak={"parameters": 4096}, error_pct=0.02))
    assert bits(run.rows) == bits(read_history(tmp_path))
    assert (run.state, run.exit_code, run.project, run.alerts) == ("finished", 0, "mine", [])
    assert (record.wandb.url, record.wandb.last_step) == (f"{online.server.url}/team/mine/runs/{run.name}", 3)
    assert (record.wandb.mode, record.wandb.error) == ("online", None)
    assert [run.attributes[key] for key in ("groupName", "notes")] == ["multirun-7", "why it was made"]
    assert run.config["environment"] == record.environment
    expected = {**summary, "status": "completed", "prediction": record.prediction.as_json()}
    assert run.summary.items() >= {**expected, "train/lr": 1e-3}.items(), "the last row's where there is no figure"
    assert run.files[OUTPUT_NAME] == b"epoch 1\n"
    sent = json.loads(run.files["record.json"])
    assert sent.pop("digest"), "so that what is loaded again can be compared with it"
    assert sent | {"wandb": {}} == record.as_json() | {"wandb": {}}
    place = {"entity": "team", "project": "mine", "group": "multirun-7", "url": record.wandb.url}
    assert sent["wandb"].items() >= place.items()
    assert not [artifact for artifact in online.server.recorded.artifacts if artifact.run == record.run_id]
    for request in online.server.recorded.requests:
        assert KEY.encode() not in request.body, request.path
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("ending", "title", "text"),
    [
        ({"status": "oom", "error": "no room; api_key=s3cr3t-0f-th3-m0d3l"}, "Out of memory", ": no room; api_key=***"),
        ({"status": "diverged", "error": "the loss is nan at step 3"}, "Diverged", ": the loss is nan at step 3"),
        ({"status": "diverged", "error": "the scale collapsed to 0"}, "Scale collapsed", ": the scale collapsed to 0"),
        (CONTAMINATED, "Contaminated", ", its speed does not count: too warm; busy"),
    ],
)
def test_a_failed_or_contaminated_run_has_an_alert(ending, title, text, record):
    record.status = "completed"
    assert alerts(record) == {}
    record = replace(record, **ending)
    assert alerts(record) == {title: f"amp_bf16-gpt_tiny-b16-s0{text}"}
    record.config["tracking"]["alerts"] = False
    assert alerts(record) == {}


def test_a_run_of_a_sweep_leaves_its_alert_to_the_comparison(track, tmp_path):
    run = track(status="oom", error="out of memory")
    assert [(alert.title, alert.severity) for alert in run.alerts] == [("Out of memory", "WARN")]
    run.alerts.clear()
    (tmp_path / "multirun.yaml").touch()
    (tmp_path / "run").mkdir()
    assert track(tmp_path / "run", status="oom", error="out of memory").alerts == []


def test_a_sweep_sends_an_alert_once_for_each_state(online, record, tmp_path):
    html = tmp_path / "comparison.html"
    html.write_text("<p>page")
    page = ComparisonPage(record.run_id, "comparison", {}, {}, {}, {}, html, alert="Out of memory: 2 runs (a: why)")
    for alert in (page.alert, page.alert, "Out of memory: 3 runs (a: why)"):
        place = WandbFacts(project="mine", group="group")
        online.address.call(publish, replace(page, alert=alert), place, tmp_path, 10.0, True, silence_s=60.0)
    assert [alert.text for alert in online.run(record).alerts] == [page.alert, "Out of memory: 3 runs (a: why)"]


@pytest.mark.parametrize(
    "names",
    [["last.pt", "best.pt"], ["last/rank-0.pt", "last/rank-1.pt", "previous/rank-0.pt"], ["best.pt", "final.pt"]],
)
def test_a_checkpoint_is_an_artifact_where_that_is_wanted(names, track, record, online, tmp_path):
    record.config["tracking"]["checkpoints"] = True
    record.weights = [KeptWeights(file=f"checkpoints/{name}", step=3) for name in names if name[0] in "bf"]
    for file in (tmp_path / "checkpoints" / name for name in names):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    track()
    (artifact,) = [one for one in online.server.recorded.artifacts if one.run == record.run_id]
    found = artifact.type, artifact.state, artifact.place
    assert found == ("checkpoint", "COMMITTED", ("team", "mine", f"checkpoint-{record.run_id}"))
    sent = {name: content.decode() for name, content in artifact.files.items() if name.endswith(".pt")}
    expected = [name.rpartition("/")[2] for name in names if name.startswith(names[0][:4])]
    assert sent == {name: name for name in expected}
