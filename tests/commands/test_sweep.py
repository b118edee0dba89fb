"""`python train.py -m`: every point in a process of its own, then their comparison."""

import json
import os
import re

import pytest
from command_line import MLP, all_runs, only_run, only_sweep


def test_each_run_has_its_own_process_and_seeds_vary_slowest(swept):
    assert (swept.ended.code, swept.ended.said) == (0, [])
    records = [run.record for run in swept.runs]
    assert [(record.identity.seed, record.arm) for record in records] == [
        (seed, arm) for seed in (0, 1) for arm in ("fp32", "amp_bf16", "tf32")
    ]
    pids = [attempt.pid for record in records for attempt in record.attempts]
    assert len(set(pids)) == 4
    assert os.getpid() not in pids


def test_arms_of_a_seed_begin_with_the_same_weights_and_batches(swept):
    trained = {(run.record.identity.seed, run.record.arm): run for run in swept.runs if run.history}
    loss = {key: run.column("train/loss")[2] for key, run in trained.items()}
    assert loss[0, "fp32"] == pytest.approx(loss[0, "amp_bf16"], rel=1e-3)
    assert loss[0, "fp32"] != loss[1, "fp32"]
    pair = {key: run.record.pair_key for key, run in trained.items()}
    assert pair[0, "fp32"] == pair[0, "amp_bf16"] != pair[1, "fp32"] == pair[1, "amp_bf16"]


def test_a_run_of_a_sweep_is_bitwise_the_run_alone(swept, train):
    assert train(*MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16", "seed=1").code == 0
    alone = only_run()
    (same,) = [run for run in swept.runs if run.record.config_hash == alone.record.config_hash]
    for key in ("train/loss", "train/grad_norm", "val/loss"):
        assert same.column(key) == alone.column(key)


def test_an_arm_that_the_device_cannot_do_is_a_record(swept):
    unsupported = [run for run in swept.runs if run.record.status == "unsupported"]
    assert [run.record.arm for run in unsupported] == ["tf32", "tf32"]
    for run in unsupported:
        assert "compute capability 8.0" in run.record.error
        assert run.history == []
    assert "unsupported" in swept.ended.out


def test_the_comparison_is_printed_and_lies_beside_the_runs(swept):
    comparison = json.loads((swept.directory / "comparison.json").read_text())
    markdown = (swept.directory / "comparison.md").read_text()
    for shown in (swept.ended.out, markdown, json.dumps(comparison)):
        assert {"fp32", "amp_bf16", "tf32"} <= set(re.findall(r"\w+", shown))
    assert "2 of 2 pairs completed and 3 are needed" in swept.ended.words
    assert str(swept.directory / "comparison.md") in swept.ended.out
    files = {path.name for path in swept.directory.iterdir() if path.is_file()}
    assert files >= {"comparison.json", "comparison.md", "multirun.yaml"}


def test_without_a_terminal_there_are_only_lines(swept):
    assert len(swept.ended.runs) == 6
    for written in (swept.ended.out, swept.ended.err):
        assert "\x1b" not in written
        assert "\r" not in written


def test_a_point_given_twice_is_trained_once(train):
    assert train("-m", *MLP, "trainer.steps=4", "seed=0,0").code == 0
    run = only_run()
    assert len(run.record.attempts) == 1
    assert len(run.history) == 2


def test_models_that_are_swept_bring_their_own_data(recorded):
    identities = [run.record.identity for run in recorded("keys").runs]
    assert [(identity.model, identity.data, identity.batch_size) for identity in identities] == [
        ("gpt_tiny", "text", 4),
        ("mlp_small", "digits", 4),
    ]
    assert [line.split()[:3] for line in recorded("keys").ended.runs] == [
        ["1/2", "fp32", "gpt_tiny"],
        ["2/2", "fp32", "mlp_small"],
    ]


def test_a_dry_run_checks_the_points_and_writes_nothing(swept, train, tmp_path):
    ended = train(*swept.arguments, "dry_run=true")
    assert (ended.code, ended.said) == (0, [])
    rows = ended.out.splitlines()[:12]
    assert ["#", "arm", "model", "data", "seed"] in [row.split()[:5] for row in rows]
    cells = [row.split() for row in rows if re.match(r"\d +\S+ +mlp", row)]
    assert [(row[1], row[4]) for row in cells] == [(arm, seed) for seed in "01" for arm in ("fp32", "amp_bf16", "tf32")]
    assert [row[-1] for row in cells] == ["s", "s", "unsupported"] * 2
    assert "6 points, 4 to train; about" in ended.out
    assert "compute capability 8.0" in ended.out
    assert not list(tmp_path.iterdir())

    alone = train(*MLP, "trainer.steps=4", "dry_run=true")
    assert (alone.code, alone.said) == (0, [])
    assert "1 point, 1 to train; about" in alone.out
    assert not list(tmp_path.iterdir())


SWEEP_FILE = """
name: small
program: train.py
method: grid
parameters:
  name: {value: small}
  seed: {value: 0}
  model: {value: mlp_small}
  precision: {values: [fp32, amp_bf16]}
  trainer.steps: {value: 4}
  trainer.log_every: {value: 2}
  tracking: {value: disabled}
"""


def test_a_sweep_file_is_run_here_as_one_multirun_that_can_be_extended(ampsweep, tmp_path):
    (tmp_path / "small.yaml").write_text(SWEEP_FILE)
    assert ampsweep("sweep", "small.yaml", "--count", "1").code == 0
    (first,) = all_runs()
    assert first.record.arm == "fp32"
    directory, written = only_sweep(), (first.directory / "run.json").read_bytes()

    ended = ampsweep("sweep", "small.yaml", f"into={directory}")
    assert ended.code == 0
    assert [run.record.arm for run in all_runs()] == ["fp32", "amp_bf16"]
    assert (first.directory / "run.json").read_bytes() == written, "it was finished"
    assert {run.record.identity.experiment for run in all_runs()} == {"small"}
    assert [[row["step"] for row in run.history] for run in all_runs()] == [[2, 4], [2, 4]]
    assert "amp_bf16" in ended.out
    assert (directory / "comparison.html").is_file()


def test_a_wrong_sweep_file_starts_nothing(ampsweep, tmp_path):
    (tmp_path / "small.yaml").write_text(SWEEP_FILE.replace("mlp_small", "mlp_smal"))
    ended = ampsweep("sweep", "small.yaml")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("error: small.yaml: model=mlp_smal: no such option; allowed are ")
    (tmp_path / "small.yaml").write_text(SWEEP_FILE)
    assert ampsweep("sweep", "small.yaml", "--count", "0").code == 2
    twice = ampsweep("sweep", "small.yaml", "seed=0,1")
    assert twice.err == "error: small.yaml: seed=0,1 names several values for one point\n"
    assert not (tmp_path / "outputs").exists()
