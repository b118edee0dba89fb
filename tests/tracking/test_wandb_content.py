"""What a W&B server has of a run besides its rows, sent there by the real client."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from wandb_server import KEY, Run, WandbServer

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import METRICS
from ampsweep.record import RunRecord, read_history
from ampsweep.record.parts import (
    Contamination,
    MemoryUse,
    ModeProof,
    RecordedDtypes,
    StepPrediction,
    WandbFacts,
)
from ampsweep.report.wandb.comparison_run import ComparisonPage, publish
from ampsweep.standard_streams import OUTPUT_NAME
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.content import run_config
from ampsweep.tracking.wandb.server import with_server

REST = {"precision": {"mode": "amp_bf16"}, "model": {"name": "gpt_tiny", "num_layers": 2}, "into": None}
"""What the config of `record` has beside its identity."""

CONFIG = TrackingConfig(mode="online", project="mine", tags=["a", "b"])

Track = Callable[..., Run]


@pytest.fixture
def track(wandb_server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Track:
    """Tracks three steps of the run that a record tells of, to its end."""
    for name, value in {**wandb_server.environment, "WANDB_FINISH_TIMEOUT": "30"}.items():
        monkeypatch.setenv(name, value)

    def track(record: RunRecord, directory: Path = tmp_path) -> Run:
        tracker = make_tracker(CONFIG, "multirun-7", print)
        tracker.start(record, directory, resume_after=None)
        for step, loss in enumerate((4.0, float("nan"), 0.1 + 0.2), start=1):
            tracker.log({"train/loss": loss, "train/lr": 1e-3 / step}, step)
        tracker.finish(record)
        (run,) = [run for run in wandb_server.runs if run.name == record.run_id]
        return run

    return track


def bits(rows: list[dict[str, float]]) -> list[dict[str, str]]:
    return [{key: float(value).hex() for key, value in row.items()} for row in rows]


def test_a_run_says_what_it_is_how_it_went_and_what_was_measured(track: Track, record: RunRecord, tmp_path) -> None:
    record.config["tracking"] = {"notes": "why it was made"}
    record.environment = {"python": "3.11", "git_commit": "abc", "flags": {"deterministic": False}}
    record.status, record.summary = "completed", {"train/loss": 0.25, "perf/step_ms": 12.5}
    record.memory = MemoryUse(peak={"parameters": 4096, "activations": 100}, end_of_forward={"parameters": 4096})
    record.prediction = StepPrediction(target="cpu", peak={"parameters": 4096, "activations": 101}, error_pct=0.02)
    record.proof = ModeProof(flops={"bfloat16": 90}, outputs={"bfloat16": 7, "float32": 2})
    record.identity.parallel, record.identity.world_size, record.identity.global_batch_size = "ddp", 2, 16
    record.dtypes = RecordedDtypes(compute="bfloat16", reduction="float32")
    run = track(record)
    assert bits(run.rows) == bits(read_history(tmp_path))
    assert (run.state, run.exit_code, run.project) == ("finished", 0, "mine")
    given = run.attributes
    assert given["displayName"] == "amp_bf16-gpt_tiny-b16-s0"
    assert (given["groupName"], given["jobType"]) == ("multirun-7", "amp_bf16")
    assert (given["tags"], given["notes"]) == (["a", "b"], "why it was made")
    assert run.config["environment"] == record.environment
    assert run.config["config"] == {"tracking": {"notes": "why it was made"}, **REST}
    assert (run.config["precision_mode"], run.config["arm"], run.config["pair_key"]) == ("amp_bf16", "amp_bf16", "pair")
    assert (run.summary["status"], run.summary["perf/step_ms"]) == ("completed", 12.5)
    assert run.summary["train/loss"] == 0.25
    assert run.summary["train/lr"] == 1e-3 / 3, "no figure of the record"
    assert not [key for key in run.summary if key.endswith((".min", ".max"))]
    assert run.summary["memory"]["peak"] == {"parameters": 4096, "activations": 100}
    assert run.summary["proof"]["outputs"] == {"bfloat16": 7, "float32": 2}
    assert run.summary["prediction"] == record.prediction.as_json()
    assert [run.config[key] for key in ("parallel", "world_size", "global_batch_size")] == ["ddp", 2, 16]
    assert [run.config[f"{kind}_dtype"] for kind in ("compute", "reduction")] == ["bfloat16", "float32"]
    assert run.alerts == []


def test_the_record_is_a_file_of_the_run_as_it_was_at_the_end(track: Track, record: RunRecord) -> None:
    record.status, record.summary = "oom", {"perf/step_ms": 0.1 + 0.2}
    run = track(record)
    sent = json.loads(run.files["record.json"])
    assert sent.pop("digest"), "so that what is loaded again can be compared with it"
    assert sent | {"wandb": {}} == record.as_json() | {"wandb": {}}
    assert sent["wandb"]["url"] == record.wandb.url
    assert (sent["wandb"]["entity"], sent["wandb"]["project"], sent["wandb"]["group"]) == ("team", "mine", "multirun-7")


def test_what_a_run_printed_is_its_log_there(track: Track, record: RunRecord, tmp_path: Path) -> None:
    (tmp_path / OUTPUT_NAME).write_text("epoch 1\n")
    assert track(record).files[OUTPUT_NAME] == b"epoch 1\n"


def test_every_metric_has_our_step_axis(track: Track, record: RunRecord) -> None:
    """As the client writes it: in the config, where an axis is named by its place in the list, counted from 1."""
    defined = json.loads(track(record).attributes["config"])["_wandb"]["value"]["m"]
    names = [one["1"] for one in defined]
    assert set(names) == {"step", *METRICS}
    for one in defined:
        if one["1"] != "step":
            assert names[one["5"] - 1] == "step"


@pytest.mark.parametrize(
    ("status", "error", "contamination", "title"),
    [
        ("oom", "out of memory", Contamination(), "Out of memory"),
        ("diverged", "the training loss is nan at step 3", Contamination(), "Diverged"),
        ("diverged", "the scale collapsed to 5.9e-08 at step 3", Contamination(), "Scale collapsed"),
        ("completed", None, Contamination(verdict="contaminated", reasons=["too warm", "busy"]), "Contaminated"),
    ],
)
def test_what_nobody_may_be_looking_for_is_an_alert(
    status, error, contamination, title, track: Track, record: RunRecord
) -> None:
    record.status, record.error, record.contamination = status, error, contamination
    (alert,) = track(record).alerts
    assert (alert.title, alert.severity) == (title, "WARN")
    assert alert.text.startswith("amp_bf16-gpt_tiny-b16-s0")
    assert alert.text.endswith(error or "its speed does not count: too warm; busy")


def test_a_run_of_a_sweep_leaves_its_alert_to_the_comparison(track: Track, record: RunRecord, tmp_path: Path) -> None:
    record.contamination = Contamination(verdict="contaminated", reasons=["busy"])
    (tmp_path / "multirun.yaml").touch()
    directory = tmp_path / "run"
    directory.mkdir()
    assert track(record, directory).alerts == []


def test_a_sweep_sends_one_alert(record: RunRecord, wandb_server: WandbServer, monkeypatch, tmp_path: Path) -> None:
    for name, value in wandb_server.environment.items():
        monkeypatch.setenv(name, value)
    html = tmp_path / "comparison.html"
    html.write_text("<p>page")
    page = ComparisonPage("c-1", "comparison", {}, {}, {}, {}, html, alert="Out of memory: 2 runs (a: why)")
    for alert in (page.alert, page.alert, "Out of memory: 3 runs (a: why)"):
        place = WandbFacts(project="mine", group="group")
        with_server(publish, replace(page, alert=alert), place, tmp_path, 10.0, True, silence_s=60.0)
    (run,) = wandb_server.runs
    assert [one.text for one in run.alerts] == [page.alert, "Out of memory: 3 runs (a: why)"], "once for each state"


def test_a_fact_has_one_name_in_the_config(record: RunRecord) -> None:
    record.config = {
        "precision": {"mode": "amp_bf16", "dtype": "bfloat16"},
        "data": {"batch_size": 16},
        "optimizer": {"lr": 0.1, "weight_decay": 0.01},
    }
    config = run_config(record)
    assert (config["batch_size"], config["dtype"]) == (16, "bfloat16")
    assert config["config"] == {"precision": {"mode": "amp_bf16"}, "optimizer": {"weight_decay": 0.01}}


def test_files_go_along_when_they_are_asked_for(
    track: Track, record: RunRecord, tmp_path: Path, wandb_server: WandbServer
) -> None:
    record.status, record.error = "oom", "why"
    record.config["tracking"] = {"checkpoints": True, "alerts": False}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.pt").write_bytes(b"weights")
    run = track(record)
    assert run.alerts == []
    artifacts = {artifact.type: artifact for artifact in wandb_server.recorded.artifacts}
    assert set(artifacts) == {"checkpoint"}
    assert all(artifact.state == "COMMITTED" for artifact in artifacts.values())
    assert artifacts["checkpoint"].files["last.pt"] == b"weights"
    assert artifacts["checkpoint"].collection == "checkpoint-run0123"


def test_a_checkpoint_of_several_ranks_goes_along_as_a_whole(
    track: Track, record: RunRecord, tmp_path: Path, wandb_server: WandbServer
) -> None:
    record.config["tracking"] = {"checkpoints": True, "alerts": False}
    files = {"rank-0.pt": b"one", "rank-1.pt": b"other"}
    for name in ("last", "previous"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        for file, content in files.items():
            (tmp_path / "checkpoints" / name / file).write_bytes(content)
    track(record)
    (artifact,) = wandb_server.recorded.artifacts
    assert (artifact.type, artifact.state) == ("checkpoint", "COMMITTED")
    assert {name: artifact.files.get(name) for name in files} == files


def test_no_file_goes_along_unasked(track: Track, record: RunRecord, tmp_path: Path, wandb_server: WandbServer) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.pt").write_bytes(b"weights")
    track(record)
    assert wandb_server.recorded.artifacts == []


def test_the_key_is_nowhere(track: Track, record: RunRecord, wandb_server: WandbServer, tmp_path: Path) -> None:
    track(record)
    for request in wandb_server.recorded.requests:
        assert KEY.encode() not in request.body, request.path
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
