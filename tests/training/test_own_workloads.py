"""Workloads of a stranger's project train as the same loops written by hand do, resume bitwise and are predicted.

All of them, in every mode and by the command line: `tests/benchmarks/own_workloads.py`.
"""

from pathlib import Path

import pytest
import torch
from assembled import StopAfter, assemble, resumed, trained

from ampsweep.config.identity import resolved_values
from ampsweep.data.base import stop_workers
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

PROJECT = Path(__file__).parents[1] / "benchmarks/own_workloads"
ALWAYS, NIGHTLY = ("digits_gan", "dqn"), ("autoencoder", "digits_wgan_gp", "pinn", "regression")
WORKLOADS = [*ALWAYS, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)]
STEPS = 8


@pytest.fixture(autouse=True)
def own_project(monkeypatch):
    monkeypatch.syspath_prepend(PROJECT)


def settings(workload, mode):
    search_path = f"hydra.searchpath=['file://{PROJECT / 'conf'}']"
    return search_path, f"experiment={workload}", f"precision={mode}", f"trainer.steps={STEPS}"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_trains_as_written_by_hand_and_as_predicted(workload):
    import plain_loops

    for mode in ("fp32", "amp_bf16"):
        training = trained(*settings(workload, mode))
        stop_workers(training.built.data)
        theirs = plain_loops.train(workload, resolved_values(training.config))
        losses, weights = [*training.column("train/loss").values()], training.built.model.state_dict()
        if mode == "fp32":
            assert losses == theirs["losses"]
            assert all(torch.equal(weights[name], theirs["weights"][name]) for name in weights)
        assert losses == pytest.approx(theirs["losses"], rel=2**-8)
        step = FakeTraining(training.config, TargetDevice("cpu")).trace(training.built.data.batch_size)
        assert step.peak().categories == training.instruments.memory().peak


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_resumes_bitwise_in_float16(workload, tmp_path):
    chosen = settings(workload, "amp_fp16")
    whole = trained(*chosen)  # which seeds the generators that the losses draw from
    first = assemble(*chosen)
    assert first.train(StopAfter(STEPS // 2)).status == "interrupted"
    second, _ = resumed(first.keep(tmp_path), *chosen)
    assert second.train().status == "completed"
    for training in (whole, first, second):
        stop_workers(training.built.data)
    losses = [[*training.column("train/loss").values()] for training in (whole, first, second)]
    assert str(losses[1] + losses[2]) == str(losses[0])  # as text: a loss may be NaN
    assert all(map(torch.equal, second.parameters(), whole.parameters()))
