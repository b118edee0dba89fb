"""An offline run, by the real client: W&B's own file has what the run's directory has."""

import math
from dataclasses import asdict

import pytest
from served import bits, train, wandb_cores, wandb_process
from wandb_file import read_wandb_file

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import METRICS
from ampsweep.records import read_history
from ampsweep.records.sections import MemoryUse, ModeProof
from ampsweep.tracking.tracker import TrackingCheck


@pytest.fixture
def track(shared, record, tmp_path):
    """Tracks the run, and reads W&B's file of it."""

    def track(*args, **options):
        track.said = train(record, tmp_path, shared, *args, **options).said
        return read_wandb_file(tmp_path / record.wandb.directory)

    return track


def test_wandb_has_config_rows_and_end_of_a_run(track, record, tmp_path):
    rows = {
        6: {"train/grad_norm": math.inf, "device/power_w": 10.0},
        11: {"val/loss": math.nan},
        1996: {"perf/mfu_pct": 93.0, "perf/step_ms": 2.0},
    }
    proof, memory = ModeProof(flops={"bfloat16": 9}), MemoryUse(peak={"parameters": 4096})
    summary = {"val/loss": 0.25, "perf/step_ms": 1.5}
    ending = {"summary": summary, "cut_short": "trainer.max_seconds", "proof": proof, "memory": memory}
    found = track([*range(1, 2001, 5), 2002], rows=rows, ending=ending, project="mine", entity="team", tags=["a", "b"])
    assert track.said == ["W&B: offline, as tracking.mode says; send runs later with `ampsweep sync DIRECTORY`"]
    assert len(found.history) == 401
    assert bits(found.history) == bits(read_history(tmp_path)), "NaN and infinity too"
    assert (record.wandb.id, record.wandb.mode, record.wandb.last_step) == ("run0123", "offline", 2002)
    assert (found.run.run_id, found.run.display_name) == ("run0123", "amp_bf16-gpt_tiny-b16-s0")
    assert (found.run.project, found.run.entity, list(found.run.tags)) == ("mine", "team", ["a", "b"])
    assert (found.run.run_group, found.run.job_type) == ("multirun-7", "amp_bf16")
    del found.config["_wandb"]
    hashes = {"arm": "amp_bf16", "pair_key": "pair", "config_hash": "hash"}
    dtypes = {"compute_dtype": "bfloat16", "reduction_dtype": "float32"}
    own = {"model": {"name": "gpt_tiny", "num_layers": 2}, "precision": {"mode": "amp_bf16"}, "into": None}
    rest = {"config": {**own, "tracking": record.config["tracking"]}, "environment": record.environment}
    assert found.config == {**asdict(record.identity), **dtypes, **hashes, **rest}, "a fact has one name"
    of_users = ("train/*", "val/*", "media/*")
    assert set(found.metrics) == {"step", *METRICS, *of_users}
    assert {found.metrics[key].step_metric for key in (*METRICS, *of_users)} == {"step"}
    assert "stats" in found.kinds, "W&B samples what the machine does"
    assert found.exit_code == 0
    expected = {**summary, "train/loss": 1 / 2002, "status": "completed", "cut_short": "trainer.max_seconds"}
    expected |= {"proof": proof.as_json(), "memory": memory.as_json()}
    assert {key: found.summary[key] for key in expected} == expected
    assert not found.summary.keys() & {"perf/mfu_pct", "device/power_w", "error"}, "a row alone is no figure of the run"


@pytest.mark.parametrize(("status", "exit_code"), [("oom", 0), ("failed", 1)])
def test_the_exit_code_of_a_run_with_an_outcome_is_zero(track, status, exit_code):
    found = track(range(1, 3), ending={"status": status, "error": "why"})
    assert (found.exit_code, found.summary["error"], found.summary["status"]) == (exit_code, "why", status)


def test_a_resumed_run_sends_each_step_once(track, record, tmp_path):
    """It ended after step 9, was resumed after 6, ended after 7, and was resumed after 6 again."""
    segments = []
    for steps, resume_after in [(range(1, 10), None), (range(7, 8), 6), (range(7, 13), 6)]:
        found = track(steps, resume_after=resume_after, group="mine")
        segments.append([row["step"] for row in found.history])
        assert found.run.run_group == "mine", "the config's group, not the multirun's"
    assert segments == [[1, 2, 3, 4, 5, 6, 7, 8, 9], [], [10, 11, 12]]
    assert [row["step"] for row in read_history(tmp_path)] == list(range(1, 13))
    assert (record.wandb.id, record.wandb.last_step) == ("run0123", 12)
    assert len(list((tmp_path / "wandb").glob("offline-run-*-run0123*"))) == 3
    assert wandb_cores() == []


def test_an_agent_decides_over_run_and_project(record, tmp_path, monkeypatch):
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(
        "wandb_version: 1\nprecision: {value: amp_bf16}\nmodel: {value: other}\ndata.batch_size: {value: 32}\n"
    )
    agent = {"WANDB_SWEEP_ID": "sweep9", "WANDB_RUN_ID": "agents-run", "WANDB_PROJECT": "agents-project"}
    for name, value in agent.items():
        monkeypatch.setenv(name, value)
    with wandb_process(tmp_path, **agent, WANDB_SWEEP_PARAM_PATH=str(parameters)) as address:
        train(record, tmp_path, address, range(1, 4))
    found = read_wandb_file(tmp_path / record.wandb.directory)
    assert record.wandb.id == found.run.run_id == "agents-run"
    assert (found.run.sweep_id, found.run.project, found.run.run_group) == ("sweep9", "agents-project", "sweep9")
    values = found.config["precision"], found.config["model"], found.config["data.batch_size"]
    assert values == ("amp_bf16", "other", 32)
    assert found.config["precision_mode"] == "amp_bf16"
    assert "seed" not in found.config["config"]


def test_names_that_wandb_refuses_are_refused_before_the_run(shared):
    for config, message in (
        ({"project": "a/b"}, r"tracking: Invalid project name 'a/b'.*"),
        ({"tags": ["x" * 65]}, r"tracking: run_tags: .*65 characters.*"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            TrackingCheck(TrackingConfig(mode="offline", **config), shared).require()
