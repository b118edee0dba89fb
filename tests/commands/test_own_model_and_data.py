"""A user's own model, data, workers and configs, from a directory outside the repository, train without any change."""

import signal
import sys
from pathlib import Path

import pytest
from command_line import all_runs, only_run, only_sweep, wait_until

MINE = """
import os, random, signal, time
import numpy as np, torch
from torch import nn
from torch.utils.data import Dataset

class Net(nn.Sequential):
    def __init__(self, width, num_features=64, num_classes=10):
        super().__init__(nn.Flatten(), nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, num_classes))

class Quadrants:
    num_train_batches = tokens_per_batch = None
    fingerprint = "quadrants"

    def __init__(self, batch_size, seed, device, spread=1.0):
        self.batch_size, self.seed, self.device, self.spread = batch_size, seed, device, spread

    def train_batch(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        points = self.spread * torch.randn(self.batch_size, 2, generator=generator)
        quadrants = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
        return points.to(self.device), quadrants.to(self.device)

    def val_batches(self):
        yield self.train_batch(-1)

class Points(Dataset):
    def __init__(self, what="nothing", length=64):
        self.what, self.length = what, length

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        time.sleep(0.002)
        if item == 7 and self.what == "raises":
            raise RuntimeError("no such point")
        if item == 7 and self.what == "is_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        noise = 0.1 * (random.random() + np.random.rand() + torch.rand(()).item())
        return torch.full((4,), item / 64 + noise), torch.full((1,), item / 64)
"""
MODEL = """
defaults:
  - override /data@_global_.data: digits
  - _self_
_target_: mine.Net
name: my_net
width: 16
"""
EXPERIMENT = """
# @package _global_
defaults: [override /model: mine, override /optimizer: sgd]
name: my_comparison
trainer: {steps: 4}
tracking: {mode: disabled}
hydra: {mode: MULTIRUN, sweeper: {params: {seed: 7, precision: "fp32,amp_bf16"}}}
"""
OWN_PARTS = (
    *("model=custom", "model._target_=mine.Net", "+model.width=8", "+model.num_features=2", "+model.num_classes=4"),
    *("data=custom", "data._target_=mine.Quadrants", "data.batch_size=64", "+data.spread=2.0", "task=classification"),
    *("optimizer=custom", "optimizer._target_=own_optimizers.Lion", "optimizer.groups=[{match:['*.bias'],lr:1e-3}]"),
    *("scheduler=custom", "scheduler._target_=own_optimizers.power", "trainer.steps=200", "tracking=disabled"),
)
POINTS = (
    *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=4", "+data.num_workers=2"),
    *("+data.train._target_=mine.Points", "+data.train.what=nothing", "+data.val._target_=mine.Points"),
    "+data.val.length=5",
)
REGRESSION = (
    *("model=custom", "model._target_=torch.nn.Linear", "+model.in_features=4", "+model.out_features=1"),
    *("task=regression", "tracking=disabled", "trainer.log_every=1"),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A directory on the user's PYTHONPATH, with configs."""
    for path, text in {"mine.py": MINE, "conf/model/mine.yaml": MODEL, "conf/experiment/mine.yaml": EXPERIMENT}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_own_model_data_optimizer_and_schedule_train(train):
    assert train(*OWN_PARTS, "optimizer.lr=1e-2", "precision=amp_fp16").code == 0
    record, num_parameters = only_run().record, 3 * 8 + 9 * 4
    identity = record.identity
    assert (record.status, identity.model, identity.model_size) == ("completed", "Net", num_parameters)
    assert (identity.data, identity.batch_size, identity.optimizer, identity.lr) == ("Quadrants", 64, "Lion", 0.01)
    assert record.config["model"]["width"] == 8
    assert record.environment["own_code"].keys() == {"mine", "own_optimizers"}, "their versions"
    assert record.summary["val/accuracy"] > 0.9
    assert record.summary["train/lr"] == pytest.approx(0.01 / 200)
    assert record.memory.peak["optimizer_state"] == 4 * num_parameters
    assert record.prediction.peak == record.memory.peak
    assert record.prediction.on_cuda is None, "a single run does not pay for it"
    assert record.proof.optimizer_fused is False


def test_own_config_files_are_options_like_any_other(train, elsewhere, repository):
    refused = train("--config-dir=conf", "model=mien").err
    said, _, allowed = refused.partition("Allowed are ")
    assert said == "error: model=mien: no such option; did you mean mine? "
    assert {"custom", "gpt_large", "mine"} <= {name.strip() for name in allowed.split(",")}
    own = elsewhere / "conf/experiment/digits.yaml"
    own.write_text(EXPERIMENT)
    ended = train("--config-dir=conf", "experiment=digits")
    assert "--config-dir conf: experiment/digits.yaml is also the name of a file of the suite" in ended.err
    own.write_bytes((repository / "conf/experiment/digits.yaml").read_bytes())
    assert train("--config-dir=conf", "experiment=mine", "dry_run=true").code == 0, "an equal file hides nothing"


def test_an_own_experiment_is_a_sweep_by_itself(train):
    assert train("--config-dir=conf", "experiment=mine").code == 0
    records = [run.record for run in all_runs()]
    assert [(record.arm, record.identity.seed) for record in records] == [("fp32", 7), ("amp_bf16", 7)]
    for identity in (record.identity for record in records):
        assert (identity.experiment, identity.optimizer, identity.data) == ("my_comparison", "sgd", "digits")
        assert (identity.model, identity.model_size) == ("my_net", 65 * 16 + 17 * 10)
    assert (only_sweep() / "comparison.md").is_file()


def test_workers_change_neither_losses_nor_memory_nor_a_resumed_run(train):
    def trained(name, *arguments):
        assert train(*REGRESSION, *POINTS, "trainer.steps=12", *arguments, f"output_dir={name}").code == 0
        return only_run(name)

    plain = trained("plain", "data.num_workers=0")
    ahead = trained("ahead", "trainer.checkpoint_every=7")
    assert [run.record.environment["data_workers"] for run in (plain, ahead)] == [0, 2]
    assert [run.record.prediction.error_pct for run in (plain, ahead)] == [0.0] * 2
    assert plain.record.memory.peak_bytes == ahead.record.memory.peak_bytes
    losses = plain.column("train/loss")
    assert (ahead.column("train/loss"), ahead.column("val/loss")) == (losses, plain.column("val/loss"))
    resumed = trained("resumed", "data.num_workers=1", "predict.with_runs=false", f"resume={ahead.directory}")
    assert resumed.column("train/loss") == {step: losses[step] for step in range(8, 13)}


@pytest.mark.parametrize(
    ("what", "said"),
    [("raises", "RuntimeError: no such point (mine.py, line 37)"), ("is_killed", "DataLoader worker (pid")],
)
def test_a_worker_that_dies_is_one_sentence(what, said, train):
    ended = train(*REGRESSION, *POINTS, f"data.train.what={what}", "trainer.steps=40", "predict.with_runs=false")
    assert (ended.code, only_run().record.status) == (1, "failed")
    assert said in only_run().record.error
    assert [line for line in ended.said if said in line] == ended.said, "and nothing else is said"


@pytest.mark.nightly
def test_a_killed_training_leaves_no_worker(start):
    command = start(*REGRESSION, *POINTS, "trainer.steps=100000", "predict.with_runs=false", PYTHONPATH=".")
    wait_until(lambda: len(command.alive()) >= 4, "there are the command, its training and two workers")
    wait_until(lambda: [*Path("outputs").rglob("history.jsonl")], "a row is logged")
    command.signal(signal.SIGKILL)
    wait_until(lambda: command.alive() == [], "the workers have ended")


SHOWN = """
import torch
from ampsweep.tasks.classification import Classification

class Shown(Classification):
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss, {"drawn": torch.rand_like(loss), "weight": 0.5}

    def media(self, model, batch):
        images, classes = batch
        torch.rand(3)
        return {"first": images[0] / 16, "classes": [{"class": one} for one in classes[:2].tolist()]}

class Odd(Shown):
    def media(self, model, batch):
        return {"first": "no image"}
"""


def test_images_and_tables_are_files_that_the_rows_of_evaluations_name(train):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    Path("pictures.py").write_text(SHOWN)
    digits = ("model=mlp_small", "data=digits", "task=custom", "tracking=disabled", "predict.with_runs=false")

    def run_of(name, *arguments):
        ended = train(*digits, "trainer.steps=6", "trainer.log_every=1", f"output_dir={name}", *arguments)
        assert ended.code == 0, ended.err
        return only_run(name)

    shown = run_of("shown", "task._target_=pictures.Shown", "trainer.eval_every=2", "trainer.checkpoint_every=4")
    named = {step: [f"media/classes-{step}.json"] for step in (2, 4, 6)}
    assert shown.column("media/classes") == named
    assert {path for paths in named.values() for path in paths} < {
        path.relative_to(shown.directory).as_posix() for path in shown.directory.glob("media/*")
    }
    assert shown.record.summary["train/weight"] == 0.5
    assert not any(key.startswith("media/") for key in shown.record.summary)
    rare = run_of("rare", "task._target_=pictures.Shown")
    assert rare.column("train/drawn") == shown.column("train/drawn"), "what media draws changes no random numbers"
    resumed = run_of("resumed", "task._target_=pictures.Shown", "trainer.eval_every=2", f"resume={shown.directory}")
    assert resumed.column("train/drawn") == {step: shown.column("train/drawn")[step] for step in (5, 6)}
    refused = train(*digits, "task._target_=pictures.Odd", "output_dir=odd")
    said = "media must be images or tables (lists of mappings), got str as first"
    assert (refused.code, said in refused.err, Path("odd").exists()) == (2, True, False)
