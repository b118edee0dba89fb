"""A run in W&B, by the real client: what is in its files, and that losing it never stops the training."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from wandb_file import WandbFile

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import METRICS
from ampsweep.record import RunRecord, read_history
from ampsweep.record.parts import MemoryUse, ModeProof
from ampsweep.tracking.tracker import Tracker, TrackingCheck, make_tracker
from ampsweep.tracking.wandb.process import WandbAddress

Read = Callable[[Path], WandbFile]


Track = Callable[..., Tracker]


@pytest.fixture
def track(shared: WandbAddress) -> Track:
    return partial(tracked, wandb=shared)


def tracked(
    record: RunRecord,
    directory: Path,
    steps: range = range(1, 4),
    *,
    wandb: WandbAddress | None = None,
    config: TrackingConfig | None = None,
    say: Callable[[str], None] = print,
    resume_after: int | None = None,
) -> Tracker:
    tracker = make_tracker(config or TrackingConfig(mode="offline"), "multirun-7", say, wandb)
    tracker.start(record, directory, resume_after=resume_after)
    for step in steps:
        tracker.log({"train/loss": 1 / step, "device/power_w": 10.0 * step}, step)
    return tracker


def test_wandb_has_the_rows_of_the_history(track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read) -> None:
    track(record, tmp_path, range(1, 2001, 5)).finish(record)
    rows = read_wandb(tmp_path / record.wandb.directory).history
    assert len(rows) == 400
    assert rows == read_history(tmp_path)


def test_non_finite_values_arrive_as_such(track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read) -> None:
    tracker = track(record, tmp_path, range(0))
    tracker.log({"train/loss": math.nan, "train/grad_norm": math.inf}, 1)
    tracker.log({"train/loss": 2.0, "train/grad_norm": -math.inf}, 2)
    tracker.finish(record)
    first, second = read_wandb(tmp_path / record.wandb.directory).history
    assert math.isnan(first["train/loss"])
    assert first["train/grad_norm"] == math.inf
    assert second == {"step": 2, "train/loss": 2.0, "train/grad_norm": -math.inf}


def test_the_run_can_be_found_by_what_it_is(track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read) -> None:
    config = TrackingConfig(mode="offline", project="mine", entity="team", tags=["a", "b"])
    tracker = track(record, tmp_path, config=config)
    tracker.finish(record)
    assert (record.wandb.id, record.wandb.mode) == ("run0123", "offline")
    found = read_wandb(tmp_path / record.wandb.directory)
    assert (found.run.run_id, found.run.display_name) == ("run0123", "amp_bf16-gpt_tiny-b16-s0")
    assert (found.run.project, found.run.entity, list(found.run.tags)) == ("mine", "team", ["a", "b"])
    assert (found.run.run_group, found.run.job_type) == ("multirun-7", "amp_bf16")
    del found.config["_wandb"]
    hashes = {"arm": "amp_bf16", "pair_key": "pair", "config_hash": "hash"}
    own = {"model": {"name": "gpt_tiny", "num_layers": 2}, "precision": {"mode": "amp_bf16"}, "into": None}
    rest = {"config": {**own, "tracking": record.config["tracking"]}, "environment": record.environment}
    assert found.config == {**asdict(record.identity), **hashes, **rest}
    assert "stats" in found.kinds, "W&B samples what the machine does"


def test_every_metric_has_the_step_axis_and_its_last_value(
    track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read
) -> None:
    track(record, tmp_path).finish(record)
    found = read_wandb(tmp_path / record.wandb.directory)
    assert set(found.metrics) == {"step", *METRICS}
    assert {found.metrics[key].step_metric for key in METRICS} == {"step"}
    assert found.summary["train/loss"] == 1 / 3


def test_the_end_of_the_run_is_in_the_summary(
    track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read
) -> None:
    tracker = track(record, tmp_path)
    record.status, record.cut_short = "completed", "trainer.max_seconds"
    record.summary = {"train/loss": 0.25, "perf/step_ms": 12.5}
    record.proof, record.memory = ModeProof(flops={"bfloat16": 9}), MemoryUse(peak={"parameters": 4096})
    tracker.finish(record)
    found = read_wandb(tmp_path / record.wandb.directory)
    assert found.exit_code == 0
    assert found.summary["train/loss"] == 0.25
    assert found.summary["perf/step_ms"] == 12.5
    assert found.summary["status"] == "completed"
    assert found.summary["cut_short"] == "trainer.max_seconds"
    assert found.summary["proof"] == record.proof.as_json()
    assert found.summary["memory"] == record.memory.as_json()
    assert "error" not in found.summary


def test_a_process_figure_that_only_rows_have_is_not_the_runs(
    track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read
) -> None:
    tracker = track(record, tmp_path)
    tracker.log({"perf/mfu_pct": 93.0, "perf/step_ms": 2.0}, 4)
    record.summary = {"perf/step_ms": 1.5}
    tracker.finish(record)
    found = read_wandb(tmp_path / record.wandb.directory)
    assert found.history[-1]["perf/mfu_pct"] == 93.0
    assert found.summary["perf/step_ms"] == 1.5
    assert not found.summary.keys() & {"perf/mfu_pct", "device/power_w"}
    assert found.summary["train/loss"] == 1 / 3


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [("oom", 0), ("diverged", 0), ("unsupported", 0), ("interrupted", 1), ("failed", 1)],
)
def test_an_outcome_is_a_success_of_the_run(
    track: Track, status: Any, exit_code: int, record: RunRecord, tmp_path: Path, read_wandb: Read
) -> None:
    tracker = track(record, tmp_path)
    record.status, record.error = status, "why"
    tracker.finish(record)
    tracker.finish(record)
    found = read_wandb(tmp_path / record.wandb.directory)
    assert (found.exit_code, found.summary["error"]) == (exit_code, "why")


def test_a_resumed_run_sends_each_step_once(track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read) -> None:
    """Ended after step 9, resumed from the checkpoint of step 6, ended after 7, resumed from 6 again."""
    segments = []
    for steps, resume_after in [(range(1, 10), None), (range(7, 8), 6), (range(7, 13), 6)]:
        track(record, tmp_path, steps, resume_after=resume_after).finish(record)
        segments.append([row["step"] for row in read_wandb(tmp_path / record.wandb.directory).history])
    assert segments == [[1, 2, 3, 4, 5, 6, 7, 8, 9], [], [10, 11, 12]]
    assert [row["step"] for row in read_history(tmp_path)] == list(range(1, 13))
    assert (record.wandb.id, record.wandb.last_step) == ("run0123", 12)
    assert len(list((tmp_path / "wandb").glob("offline-run-*-run0123*"))) == 3


def test_an_agent_decides_over_run_and_project(
    record: RunRecord, tmp_path: Path, read_wandb: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(
        "wandb_version: 1\nprecision: {value: amp_bf16}\nmodel: {value: other}\ndata.batch_size: {value: 32}\n"
    )
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep9")
    monkeypatch.setenv("WANDB_RUN_ID", "agents-run")
    monkeypatch.setenv("WANDB_PROJECT", "agents-project")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(parameters))
    tracked(record, tmp_path).finish(record)
    found = read_wandb(tmp_path / record.wandb.directory)
    assert record.wandb.id == found.run.run_id == "agents-run"
    assert (found.run.sweep_id, found.run.project, found.run.run_group) == ("sweep9", "agents-project", "sweep9")
    assert (found.config["precision"], found.config["model"], found.config["data.batch_size"]) == (
        "amp_bf16",
        "other",
        32,
    )
    assert found.config["precision_mode"] == "amp_bf16"
    assert "seed" not in found.config["config"]


def test_a_named_group_decides_over_the_multirun(
    track: Track, record: RunRecord, tmp_path: Path, read_wandb: Read
) -> None:
    track(record, tmp_path, config=TrackingConfig(mode="offline", group="mine")).finish(record)
    assert read_wandb(tmp_path / record.wandb.directory).run.run_group == "mine"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrackingConfig(mode="offline", project="a/b"), "tracking: Invalid project name 'a/b'.*"),
        (TrackingConfig(mode="offline", tags=["x" * 65]), "tracking: run_tags: .*65 characters.*"),
    ],
)
def test_names_wandb_does_not_take_are_refused_before_the_run(
    config: TrackingConfig, message: str, shared: WandbAddress
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        TrackingCheck(config, shared).require()
