"""A user's own model, data and configs, from a directory outside the repository, train without any change to it."""

import sys

import pytest
from command_line import all_runs, only_run, only_sweep

MINE = '''
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, num_features=64, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, num_classes)
        )

    def forward(self, inputs):
        return self.layers(inputs)

class Quadrants:
    """Points of a plane, classified by the quadrant they lie in."""

    num_train_batches = None
    tokens_per_batch = None
    fingerprint = "quadrants"

    def __init__(self, batch_size, seed, device, spread=1.0):
        self.batch_size, self.seed, self.device, self.spread = batch_size, seed, device, spread

    def train_batch(self, index):
        return self.points(1000 * self.seed + index + 1)

    def val_batches(self):
        yield self.points(0)

    def points(self, seed):
        generator = torch.Generator().manual_seed(seed)
        points = self.spread * torch.randn(self.batch_size, 2, generator=generator)
        quadrants = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
        return points.to(self.device), quadrants.to(self.device)

class Scored(nn.Module):
    """Computes its own loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images, labels):
        logits = self.layer(images.flatten(1))
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}

class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr=0.001, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.sub_(mean.sign().mul_(group["lr"]))

def fading(applied_steps, num_steps):
    return 1 - applied_steps / num_steps
'''
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
defaults:
  - override /model: mine
  - override /optimizer: sgd
name: my_comparison
trainer:
  steps: 4
tracking:
  mode: disabled
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      seed: 7
      precision: fp32,amp_bf16
"""
OWN_NET = ("model=custom", "model._target_=mine.Net", "+model.width=8")
SHORT = ("trainer.steps=4", "trainer.log_every=2", "tracking=disabled", "predict.with_runs=false")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A directory on the user's PYTHONPATH, with configs."""
    for path, text in {"mine.py": MINE, "conf/model/mine.yaml": MODEL, "conf/experiment/mine.yaml": EXPERIMENT}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


OWN_STEP = (
    *("optimizer=custom", "optimizer._target_=mine.Signs", "optimizer.groups=[{match:['*.bias'],momentum:0.5}]"),
    *("scheduler=custom", "scheduler._target_=mine.fading"),
)


def test_an_own_optimizer_trains_by_an_own_schedule(train):
    with_prediction = ("precision=amp_fp16", "predict.with_runs=true")
    assert train(*OWN_NET, "data=digits", *SHORT, *OWN_STEP, *with_prediction).code == 0
    record = only_run().record
    assert (record.status, record.identity.model, record.identity.model_size) == ("completed", "Net", 65 * 8 + 9 * 10)
    assert record.config["model"]["width"] == 8
    assert list(record.environment["own_code"]) == ["mine"], "its version"
    assert (record.identity.optimizer, record.identity.lr) == ("Signs", 0.001)
    assert record.summary["train/lr"] == pytest.approx(0.001 * 1 / 4)
    assert record.memory.peak["optimizer_state"] == 4 * (65 * 8 + 9 * 10)
    assert record.prediction.peak == record.memory.peak
    assert record.proof.optimizer_fused is False


def test_an_own_optimizer_that_cannot_train_is_refused(train, elsewhere):
    for given, said in {
        "optimizer.groups=[{match:['*.scale'],momentum:0.5}]": (
            "optimizer.groups[0].match: no parameter to train is called *.scale"
        ),
        "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau": (
            "scheduler=ReduceLROnPlateau: ReduceLROnPlateau needs metrics for its step"
        ),
        "optimizer._target_=mine.Sings": "optimizer._target_=mine.Sings does not import",
        "+optimizer.beta=0.5": (
            "optimizer=Signs: TypeError: Signs.__init__() got an unexpected keyword argument 'beta'"
        ),
        "optimizer.foreach=true": "optimizer.foreach=true: Signs has no such argument",
    }.items():
        ended = train(*OWN_NET, "data=digits", *SHORT, *OWN_STEP, given)
        assert ended.code == 2
        assert ended.said[0].startswith(f"error: {said}")
    assert not (elsewhere / "outputs").exists()


def test_own_config_files_are_options_like_any_other(train, elsewhere, repository):
    ended = train("--config-dir=conf", "model=mien")
    assert ended.code == 2
    assert "model=mien: no such option; allowed are " in ended.err
    allowed = {name.strip() for name in ended.err.partition("allowed are ")[2].split(",")}
    assert {"custom", "gpt_large", "mine"} <= allowed
    (elsewhere / "conf/experiment/digits.yaml").write_text(EXPERIMENT)
    ended = train("--config-dir=conf", "experiment=digits")
    assert ended.code == 2
    assert "--config-dir conf: experiment/digits.yaml is also the name of a file of the suite" in ended.err
    (elsewhere / "conf/experiment/digits.yaml").write_bytes((repository / "conf/experiment/digits.yaml").read_bytes())
    assert train("--config-dir=conf", "experiment=mine", "dry_run=true").code == 0, "an equal file hides nothing"


def test_an_own_experiment_is_a_sweep_by_itself(train):
    assert train("--config-dir=conf", "experiment=mine").code == 0
    runs = all_runs()
    assert [(run.record.arm, run.record.identity.seed) for run in runs] == [("fp32", 7), ("amp_bf16", 7)]
    for identity in (run.record.identity for run in runs):
        assert (identity.experiment, identity.optimizer) == ("my_comparison", "sgd")
        assert (identity.model, identity.data, identity.model_size) == ("my_net", "digits", 65 * 16 + 17 * 10)
    assert (only_sweep() / "comparison.md").is_file()


def test_own_data_is_trained_on(train):
    data = ("data=custom", "data._target_=mine.Quadrants", "data.batch_size=64", "+data.spread=2.0")
    net = (*OWN_NET, "+model.num_features=2", "+model.num_classes=4", "task=classification")
    assert train(*net, *data, "trainer.steps=200", "optimizer.lr=1e-2", "tracking=disabled").code == 0
    record = only_run().record
    assert (record.identity.data, record.identity.batch_size) == ("Quadrants", 64)
    assert record.summary["val/accuracy"] > 0.9


def test_a_model_may_compute_its_own_loss(train):
    own = ("model=custom", "model._target_=mine.Scored", "data=digits", "task=model_loss")
    assert train(*own, *SHORT, "precision=amp_fp16").code == 0
    run = only_run()
    assert run.record.status == "completed"
    assert run.column("train/loss")[4] < run.column("train/loss")[2]


"""Hugging Face's own model, built from sizes without any download; it shifts the labels itself."""
