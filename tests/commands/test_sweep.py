"""`python train.py -m`: every point in a process of its own, then their comparison."""

import json
import os
import re

import pytest
from command_line import MLP, all_runs, only_run, only_sweep


def test_each_run_has_its_own_process_and_seeds_vary_slowest(swept):
    assert (swept.ended.code, swept.ended.said) == (0, [])
    records = [run.record for run in all_runs(swept.directory)]
    assert [(record.identity.seed, record.arm) for record in records] == [
        (0, "fp32"),
        (0, "amp_bf16"),
        (0, "tf32"),
        (1, "fp32"),
        (1, "amp_bf16"),
        (1, "tf32"),
    ]
    pids = [attempt.pid for record in records for attempt in record.attempts]
    assert len(set(pids)) == 4
    assert os.getpid() not in pids


def test_arms_of_a_seed_begin_with_the_same_weights_and_batches(swept):
    trained = {(run.record.identity.seed, run.record.arm): run for run in all_runs(swept.directory) if run.history}
    loss = {key: run.column("train/loss")[2] for key, run in trained.items()}
    assert loss[0, "fp32"] == pytest.approx(loss[0, "amp_bf16"], rel=1e-3)
    assert loss[0, "fp32"] != loss[1, "fp32"]
    pair = {key: run.record.pair_key for key, run in trained.items()}
    assert pair[0, "fp32"] == pair[0, "amp_bf16"] != pair[1, "fp32"] == pair[1, "amp_bf16"]


def test_a_run_of_a_sweep_is_bitwise_the_run_alone(swept, train):
    assert train(*MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16", "seed=1").code == 0
    alone = only_run()
    (same,) = [run for run in all_runs(swept.directory) if run.record.config_hash == alone.record.config_hash]
    for key in ("train/loss", "train/grad_norm", "val/loss"):
        assert same.column(key) == alone.column(key)


def test_what_the_device_cannot_do_is_a_record_and_no_failure(swept):
    unsupported = [run for run in all_runs(swept.directory) if run.record.status == "unsupported"]
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
    assert "2 of 2 pairs completed and 3 are needed" in " ".join(swept.ended.out.split())
    assert str(swept.directory / "comparison.md") in swept.ended.out
    files = {path.name for path in swept.directory.iterdir() if path.is_file()}
    assert files >= {"comparison.json", "comparison.md", "multirun.yaml"}


def test_a_point_given_twice_is_trained_once(train):
    assert train("-m", *MLP, "trainer.steps=4", "seed=0,0").code == 0
    run = only_run()
    assert len(run.record.attempts) == 1
    assert len(run.history) == 2


def test_different_models_can_be_swept_together(train):
    """Each brings its own data and task along."""
    assert train("-m", "model=gpt_tiny,mlp_small", "data.batch_size=4", "trainer.steps=2", *MLP[1:]).code == 0
    identities = [run.record.identity for run in all_runs()]
    assert [(one.model, one.data, one.batch_size) for one in identities] == [
        ("gpt_tiny", "text", 4),
        ("mlp_small", "digits", 4),
    ]


@pytest.mark.slow
def test_an_experiment_is_a_sweep_by_itself(train):
    assert train("experiment=smoke", "tracking=disabled").code == 0
    records = [run.record for run in all_runs()]
    assert [record.arm for record in records] == ["fp32", "amp_bf16", "amp_fp16"]
    assert {record.identity.experiment for record in records} == {"smoke"}
    assert only_sweep().parent.name == "smoke"


def test_an_arm_too_slow_is_cut_short_and_said_to_be(train):
    ended = train("-m", *MLP, "trainer.steps=100000", "trainer.max_seconds=0.2", "precision=fp32")
    assert ended.code == 0
    record = only_run().record
    assert record.status == "completed"
    assert re.match(r"trainer.max_seconds=0.2 reached after step \d+ of 100000", record.cut_short)
    assert "val/loss" in record.summary
    assert "trainer.max_seconds=0.2 reached" in " ".join(ended.out.split())


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
def test_memory_that_does_not_hold_the_model_is_an_outcome(sweep, train):
    assert train(*sweep, *MLP, "trainer.steps=2", "model.hidden_size=1000000").code == 0
    record = only_run().record
    assert record.status == "oom"
    assert (record.oom.phase, record.oom.limit_bytes) == ("build", None)
    assert record.oom.requested_bytes == 10**12 * 4
    assert record.oom.in_use_bytes > 2**20
    assert record.error.startswith("out of memory while building: 3.638 TiB asked for with ")


def test_a_dry_run_checks_the_points_and_writes_nothing(swept, train, tmp_path):
    ended = train("-m", *swept.arguments, "dry_run=true")
    assert (ended.code, ended.said) == (0, [])
    rows = ended.out.splitlines()[:12]
    assert ["#", "arm", "model", "data", "seed"] in [row.split()[:5] for row in rows]
    cells = [row.split() for row in rows if re.match(r"\d +\S+ +mlp", row)]
    assert [(row[1], row[4]) for row in cells] == [(arm, seed) for seed in "01" for arm in ("fp32", "amp_bf16", "tf32")]
    assert [row[-1] for row in cells] == ["s", "s", "unsupported"] * 2
    assert "6 points, 4 to train; about" in ended.out
    assert "compute capability 8.0" in ended.out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_one_training_writes_nothing_either(train, tmp_path):
    ended = train(*MLP, "trainer.steps=4", "dry_run=true")
    assert (ended.code, ended.said) == (0, [])
    assert "1 point, 1 to train; about" in ended.out
    assert not list(tmp_path.iterdir())
