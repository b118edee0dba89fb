"""`python train.py` trains once, in its own process, and leaves a true record."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
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


def test_figures_that_a_cpu_cannot_measure_are_absent(train):
    train(*MLP, "trainer.steps=12")
    summary = only_run().record.summary
    assert summary.keys() <= METRICS.keys()
    assert summary.keys() >= MEASURED_ON_A_CPU
    assert not [key for key in summary if key.startswith(("amp/", "device/power", "memory/peak_reserved"))]


def test_the_history_is_strict_json_and_ends_with_the_validation(train):
    train(*MLP, "trainer.steps=11", "trainer.log_every=4", "precision=amp_fp16")
    run = only_run()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = (run.directory / "history.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row[STEP] for row in rows] == [4, 8, 11]
    for row in rows:
        assert row.keys() - {STEP} <= METRICS.keys()
        assert row.keys() >= {"train/loss", "train/lr", "amp/scale", "amp/skipped_steps", "perf/step_ms"}
    assert ["val/loss" in row for row in rows] == [False, False, True]
    assert rows[-1]["val/loss"] == run.record.summary["val/loss"]
    assert rows[-1]["val/accuracy"] == run.record.summary["val/accuracy"]


def test_evaluation_comes_when_it_is_asked_for(train):
    train(*MLP, "trainer.steps=7", "trainer.log_every=5", "trainer.eval_every=3")
    run = only_run()
    assert list(run.column("val/loss")) == [3, 6, 7]
    assert list(run.column("train/loss")) == [5, 7]


def test_wandb_gets_the_rows_of_the_history(train):
    train(*MLP, "trainer.steps=6", "tracking.mode=offline", "precision=amp_fp16")
    run = only_run()
    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert len(tracked.history) == 3
    assert tracked.history == run.history
    assert tracked.exit_code == 0
    for key in ("val/loss", "val/accuracy", "perf/step_ms", "memory/peak_allocated_gib", "amp/skipped_steps"):
        assert tracked.summary[key] == run.record.summary[key]


def test_the_summary_is_printed(train):
    ended = train(*GPT, "trainer.steps=4", "precision=amp_fp16")
    run = only_run()
    assert "amp_fp16, gpt_tiny, seed 0" in ended.out
    assert re.search(r"status +completed", ended.out)
    assert f"{run.record.summary['val/loss']:.4f}" in ended.out
    assert re.search(r"skipped +0 steps", ended.out)
    assert str(run.directory.resolve()) in ended.out


def test_two_runs_of_one_second_have_directories_of_their_own(train):
    for _ in range(2):
        assert train(*MLP, "trainer.steps=2").code == 0
    assert len(list(Path("outputs/train").iterdir())) == 2


def test_away_from_a_terminal_nothing_moves(swept, train):
    for ended in (swept.ended, train(*MLP, "trainer.steps=30")):
        assert ended.said == []
        assert "completed" in ended.out
        assert "\x1b" not in ended.out
        assert "\r" not in ended.out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_a_line_shows_step_and_loss_and_goes_away(repository):
    """Drawn on stderr: what is on stdout can be piped on."""
    keyboard, screen = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(repository / "train.py"), *MLP, "trainer.steps=400"],
        stdout=subprocess.PIPE,
        stderr=screen,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
        text=True,
    )
    os.close(screen)
    shown = b"".join(iter(partial(read_terminal, keyboard), b"")).decode()
    out, _ = process.communicate()
    os.close(keyboard)
    assert process.returncode == 0
    assert "fp32  mlp_small seed 0  step" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"\d+/400", shown)
    assert re.search(r"loss \d\.\d{4}", shown)
    assert shown.rstrip().endswith("\x1b[2K"), "the line is erased"
    assert "\x1b" not in out
    assert "completed" in out


def read_terminal(keyboard):
    """What the other end wrote; nothing once it is closed, for which Linux has an error."""
    try:
        return os.read(keyboard, 4096)
    except OSError:
        return b""
