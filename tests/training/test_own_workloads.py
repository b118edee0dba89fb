"""Workloads of a stranger's project train as the same loops written by hand do, resume bitwise and are predicted.

All of them, in every mode and by the command line: `tests/benchmarks/own_workloads.py`.
"""

import math
from pathlib import Path

import pytest
import torch
from assembled import StopAfter, assemble, resumed

from ampsweep.config.identity import resolved_values
from ampsweep.data.base import stop_workers
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.training.resume import take_checkpoint

PROJECT = Path(__file__).parents[1] / "benchmarks/own_workloads"
WORKLOADS = ("autoencoder", "digits_gan", "digits_wgan_gp", "dqn", "pinn", "regression")
STEPS = 8


@pytest.fixture(autouse=True)
def own_project(monkeypatch):
    monkeypatch.syspath_prepend(PROJECT)


def settings(workload, mode):
    search_path = f"hydra.searchpath=['file://{PROJECT / 'conf'}']"
    return search_path, f"experiment={workload}", f"precision={mode}", f"trainer.steps={STEPS}"


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_trains_as_written_by_hand_and_as_predicted(workload, mode):
    import plain_loops

    training = assemble(*settings(workload, mode))
    assert training.train().status == "completed"
    stop_workers(training.built.data)
    theirs = plain_loops.train(workload, resolved_values(training.config))
    ours, weights = [*training.column("train/loss").values()], training.built.model.state_dict()
    if mode == "fp32":
        assert ours == theirs["losses"]
        assert all(torch.equal(weights[name], theirs["weights"][name]) for name in weights)
    else:
        assert ours == pytest.approx(theirs["losses"], rel=2**-8)
    assert all(map(math.isfinite, ours))
    step = FakeTraining(training.config, TargetDevice("cpu")).trace(training.built.data.batch_size)
    assert step.peak().categories == training.trainer.instruments.memory().peak


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_resumes_bitwise_in_float16(workload, tmp_path):
    chosen = settings(workload, "amp_fp16")
    whole = assemble(*chosen)  # which seeds what the losses draw
    assert whole.train().status == "completed"
    first = assemble(*chosen)
    assert first.train(StopAfter(STEPS // 2)).status == "interrupted"
    take_checkpoint(first.trainer, tmp_path, "hash", "my_model", "my_arm")
    second, _ = resumed(tmp_path, *chosen)
    assert second.train().status == "completed"
    for training in (whole, first, second):
        stop_workers(training.built.data)
    expected = [*whole.column("train/loss").values()]
    continued = [*first.column("train/loss").values(), *second.column("train/loss").values()]
    assert continued == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert all(map(torch.equal, second.parameters(), whole.parameters()))
