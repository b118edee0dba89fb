"""Evaluation, checkpoints, warm-up and the traced step are no part of the energy of a sample."""

import pytest
from assembled import MLP, assemble

from ampsweep.monitors.device_sampler import EnergyMeter
from ampsweep.tasks.classification import Classification

BATCH = 16


class Costly(Classification):
    """Every step takes 5 J, everything else 1000 J."""

    joules = 0.0

    def loss(self, model, batch):
        self.joules += 5
        return super().loss(model, batch)

    def evaluate(self, model, batch):
        self.joules += 1000
        return super().evaluate(model, batch)

    def save(self, trainer):
        self.joules += 1000


@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 4])
@pytest.mark.parametrize("more", [(), ("trainer.eval_every=3", "trainer.checkpoint_every=4")])
def test_a_sample_takes_its_share_of_a_step(warmup_steps, more):
    task = Costly()
    settings = ("trainer.steps=12", f"trainer.warmup_steps={warmup_steps}", *more)
    training = assemble(*MLP, *settings, task=task, _save=task.save)
    meter = EnergyMeter(lambda: task.joules, samples_per_step=BATCH, min_stretch_s=0)
    training.trainer.instruments._energy = meter
    training.train()
    assert training.trainer.instruments.summary()["device/energy_per_sample_j"] == 5 / BATCH


def test_a_cpu_counts_no_energy():
    training = assemble(*MLP, "trainer.steps=8")
    training.train()
    assert not [
        key for key in training.trainer.instruments.summary() if key.startswith(("device/energy", "device/pow"))
    ]
