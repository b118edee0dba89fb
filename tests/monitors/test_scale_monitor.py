"""Counts of skipped and applied steps equal GradScaler's."""

from random import Random

import pytest
import torch

from ampsweep.monitors.scaler import ScaleMonitor


class Training:
    """One weight trained under a scaler; single steps can be made to overflow."""

    def __init__(self, *, as_numbers=False, **settings):
        self.as_numbers = as_numbers
        self.scaler = torch.amp.GradScaler("cpu", **settings)
        self.weight, self.num_applied = torch.ones((), requires_grad=True), 0
        self.optimizer = torch.optim.SGD([self.weight], lr=1e-3)
        self.optimizer.register_step_post_hook(lambda *_: setattr(self, "num_applied", self.num_applied + 1))

    def step(self, monitor, overflow=False):
        self.scaler.scale(self.weight * (torch.inf if overflow else 1e-3)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        scale = self.scaler.scale(torch.ones(()))
        monitor.observe(scale.item() if self.as_numbers else scale)
        self.optimizer.zero_grad()

    def tracker(self):
        return self.scaler.state_dict()["_growth_tracker"]


def monitor_of(init_scale, growth_interval):
    return ScaleMonitor(init_scale, growth_interval, device=torch.device("cpu"))


def values(monitor):
    monitor.end_row()
    return monitor.rows()[-1]


@pytest.mark.parametrize("as_numbers", [False, True])
@pytest.mark.parametrize("num_unread", [1, 70, 150])
def test_counts_equal_the_scalers_through_overflow_and_growth(num_unread, as_numbers):
    training = Training(init_scale=2.0**60, growth_interval=3, as_numbers=as_numbers)
    monitor, random = monitor_of(2.0**60, 3), Random(num_unread)
    for attempted in range(1, 3 * num_unread + 19):
        scale = training.scaler.get_scale()
        training.step(monitor, overflow=random.random() < 0.2)
        if attempted % num_unread == 0:
            assert monitor.applied_on_device() == training.num_applied
            assert values(monitor) == {
                "amp/scale": scale,
                "amp/growth_tracker": training.tracker(),
                "amp/skipped_steps": attempted - training.num_applied,
                "amp/applied_steps": training.num_applied,
            }
    assert 0 < training.num_applied < attempted


def test_the_tracker_restarts_where_the_scale_cannot_grow():
    training, monitor = Training(init_scale=2.0**127, growth_interval=2), monitor_of(2.0**127, 2)
    for _ in range(5):
        training.step(monitor)
        assert values(monitor)["amp/growth_tracker"] == training.tracker()
    assert (training.scaler.get_scale(), training.num_applied) == (2.0**127, 5)


def test_counts_of_a_checkpoint_go_on_where_float32_would_lose_steps():
    monitor, beyond = monitor_of(4.0, 2000), 2**24
    state = {"num_observed": 2 * beyond, "skipped_steps": beyond, "growth_tracker": 0}
    monitor.load_state_dict(state, torch.tensor(2.0))
    monitor.observe(torch.tensor(1.0))
    monitor.observe(torch.tensor(1.0))
    assert values(monitor)["amp/skipped_steps"] == values(monitor)["amp/applied_steps"] == beyond + 1
    assert monitor.applied_on_device() == beyond + 1
