"""Counts of skipped and applied steps equal GradScaler's, without reading from the device."""

from random import Random

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.monitors.scaler import ScaleMonitor

CPU = torch.device("cpu")


class Training:
    """A linear layer trained under a scaler; single steps can be made to overflow."""

    def __init__(self, **settings):
        self.scaler = torch.amp.GradScaler("cpu", **settings)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.num_applied = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_):
        self.num_applied += 1

    def step(self, monitor, overflow=False, loss=None):
        x = torch.full((2, 4), torch.inf if overflow else 1.0)
        self.scaler.scale(self.model(x).mean() if loss is None else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        monitor.observe(self.scale())
        self.optimizer.zero_grad()

    def scale(self):
        return self.scaler.scale(torch.ones(()))

    def monitor(self):
        interval = self.scaler.get_growth_interval()
        return ScaleMonitor(CPU, init_scale=self.scaler.get_scale(), growth_interval=interval)


def monitor_at(scale):
    return ScaleMonitor(CPU, init_scale=scale, growth_interval=2000)


def values(monitor):
    return {key: tensor.item() for key, tensor in monitor.tensors().items()}


@pytest.mark.parametrize("num_unread", [1, 5, 64, 70])
def test_counts_equal_the_scalers_through_overflow_and_growth(num_unread):
    training = Training(init_scale=2.0**60, growth_interval=3)
    monitor, random = training.monitor(), Random(num_unread)
    assert monitor.tensors() == {}
    for attempted in range(1, 3 * num_unread + 19):
        scale = training.scaler.get_scale()
        training.step(monitor, overflow=random.random() < 0.2)
        if attempted % num_unread == 0:
            assert values(monitor) == {
                "amp/scale": scale,
                "amp/growth_tracker": training.scaler.state_dict()["_growth_tracker"],
                "amp/skipped_steps": attempted - training.num_applied,
                "amp/applied_steps": training.num_applied,
            }
    assert 0 < training.num_applied < attempted


def test_the_tracker_restarts_where_the_scale_cannot_grow():
    training = Training(init_scale=2.0**127, growth_interval=2)
    training.model.requires_grad_(False).bias.requires_grad_(True)
    monitor = training.monitor()
    for _ in range(5):
        training.step(monitor, loss=1e-3 * training.model.bias.sum())
        assert values(monitor)["amp/growth_tracker"] == training.scaler.state_dict()["_growth_tracker"]
    assert training.scaler.get_scale() == 2.0**127
    assert training.num_applied == 5


def test_counting_continues_from_a_checkpoint():
    training = Training(growth_interval=4)
    first, resumed = training.monitor(), training.monitor()
    for overflow in (True, False, False):
        training.step(first, overflow)
    resumed.load_state_dict(first.state_dict(), training.scale())
    training.step(resumed)
    assert values(resumed)["amp/growth_tracker"] == training.scaler.state_dict()["_growth_tracker"] == 3
    assert (values(resumed)["amp/skipped_steps"], values(resumed)["amp/applied_steps"]) == (1, 3)


def test_counts_stay_exact_where_float32_would_lose_single_steps():
    monitor, beyond = monitor_at(4.0), 2**24
    state = {"num_observed": 2 * beyond, "skipped_steps": beyond, "growth_tracker": 0}
    monitor.load_state_dict(state, torch.tensor(2.0))
    monitor.observe(torch.tensor(1.0))
    tensors = monitor.tensors()
    monitor.observe(torch.tensor(1.0))
    assert values(monitor)["amp/skipped_steps"] == beyond + 1
    assert values(monitor)["amp/applied_steps"] == beyond + 1
    monitor.observe(torch.tensor(0.5))
    assert tensors["amp/skipped_steps"].item() == beyond + 1, "values already taken do not change"


def test_observing_reads_no_value_from_the_device():
    monitor = monitor_at(1.0)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        monitor.observe(torch.ones(()))
        monitor.tensors()
    names = {event.name for event in profiled.events()}
    assert "aten::lt" in names
    assert "aten::_local_scalar_dense" not in names
