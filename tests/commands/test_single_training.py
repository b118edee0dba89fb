"""`python train.py` trains once, in its own process, and leaves a true record."""

import json
import os
import re
from dataclasses import asdict

from command_line import GPT, MLP, only_run
from wandb_file import read_wandb_file

from ampsweep.metrics import METRICS, STEP

MEASURED_ON_A_CPU = {
    *("train/loss", "train/grad_norm", "train/lr", "val/loss", "val/accuracy"),
    *("perf/step_ms", "perf/samples_per_sec", "memory/peak_allocated_gib", "memory/process_gib"),
    *("memory/parameters_gib", "memory/gradients_gib", "memory/optimizer_state_gib", "memory/activations_gib"),
}


def test_a_run_leaves_a_complete_record(train):
    ended = train(*MLP, "trainer.steps=12", "seed=3", "precision=amp_bf16")
    assert (ended.code, ended.said) == (0, [])
    assert "completed" in ended.out
    assert "\x1b" not in ended.out
    run = only_run()
    record = run.record
    assert (record.schema, record.kind, record.status) == (1, "measured", "completed")
    assert (record.error, record.cut_short, record.prediction) == (None, None, None)
    assert record.arm == "amp_bf16"
    assert asdict(record.identity) == {
        "experiment": "train",
        "precision_mode": "amp_bf16",
        "dtype": "bfloat16",
        "model": "mlp_small",
        "model_size": 85002,
        "task": "classification",
        "data": "digits",
        "data_fingerprint": record.identity.data_fingerprint,
        "batch_size": 64,
        "grad_accum_steps": 1,
        "seq_len": None,
        "steps": 12,
        "optimizer": "adamw",
        "lr": 1e-3,
        "compile": False,
        "channels_last": False,
        "seed": 3,
        "device": "cpu",
        "device_name": record.environment["device"],
        "world_size": 1,
        "parallel": "single",
        "global_batch_size": 64,
    }
    assert record.config["precision"]["mode"] == "amp_bf16"
    assert record.config["trainer"]["steps"] == 12
    assert {"code_version", "python", "packages", "os", "flags"} <= record.environment.keys()
    assert record.proof.outputs.keys() == {"float32", "bfloat16"}
    assert set(record.memory.peak) >= {"parameters", "gradients", "optimizer_state", "activations"}
    (attempt,) = record.attempts
    assert (attempt.from_step, attempt.pid) == (0, os.getpid())
    assert record.started_at <= record.ended_at
    assert not record.wandb
    assert re.fullmatch(r"[0-9a-f]{12}", record.pair_key)
    assert re.fullmatch(r"[0-9a-f]{8,}", record.identity.data_fingerprint)
    assert run.directory.name == f"amp_bf16-mlp_small-s3-{record.config_hash[:8]}"
    assert {path.name for path in run.directory.iterdir()} == {"run.json", "history.jsonl", ".hydra"}
    assert METRICS.keys() >= record.summary.keys() >= MEASURED_ON_A_CPU
    assert not [key for key in record.summary if key.startswith(("amp/", "device/power", "memory/peak_reserved"))]

    assert train(*MLP, "trainer.steps=12", "seed=3", "precision=amp_bf16").code == 0
    assert len(list(run.directory.parents[1].iterdir())) == 2, "of one second, with directories of their own"


def test_the_history_is_strict_json_and_ends_with_the_validation(train):
    train(*MLP, "trainer.steps=11", "trainer.log_every=4", "trainer.eval_every=3", "precision=amp_fp16")
    run = only_run()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = (run.directory / "history.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row[STEP] for row in rows if "train/loss" in row] == [4, 8, 11]
    assert [row[STEP] for row in rows if "val/loss" in row] == [3, 6, 9, 11]
    for row in rows:
        assert row.keys() - {STEP} <= METRICS.keys()
        if "train/loss" in row:
            assert row.keys() >= {"train/lr", "amp/scale", "amp/skipped_steps", "perf/step_ms"}
    assert rows[-1]["val/loss"] == run.record.summary["val/loss"]
    assert rows[-1]["val/accuracy"] == run.record.summary["val/accuracy"]


def test_the_summary_is_printed_and_wandb_gets_the_rows(train):
    ended = train(*GPT, "trainer.steps=4", "trainer.log_every=2", "precision=amp_fp16", "tracking.mode=offline")
    run = only_run()
    assert "amp_fp16, gpt_tiny, seed 0" in ended.out
    assert re.search(r"status +completed", ended.out)
    assert f"{run.record.summary['val/loss']:.4f}" in ended.out
    assert re.search(r"skipped +0 steps", ended.out)
    assert str(run.directory.resolve()) in ended.out
    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert (len(tracked.history), tracked.history, tracked.exit_code) == (2, run.history, 0)
    for key in ("val/loss", "perf/step_ms", "memory/peak_allocated_gib", "amp/skipped_steps"):
        assert tracked.summary[key] == run.record.summary[key]
