"""The counts are GradScaler's own, taken without asking it."""

from random import Random

import pytest
import torch
from devices import needs_cuda
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.monitors.scaler import ScaleMonitor

CPU = torch.device("cpu")


class Training:
    """A linear layer trained under a scaler, in which single steps can be made to overflow."""

    def __init__(self, **settings):
        self.scaler = torch.amp.GradScaler("cpu", **settings)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.one = torch.ones(())
        self.num_applied = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_):
        self.num_applied += 1

    def step(self, monitor, overflow=False):
        x = torch.full((2, 4), torch.inf if overflow else 1.0)
        self.scaler.scale(self.model(x).mean()).backward()
        self.end_step(monitor)

    def end_step(self, monitor):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        monitor.observe(self.scale())
        self.optimizer.zero_grad()

    def scale(self):
        return self.scaler.scale(self.one)

    def monitor(self):
        interval = self.scaler.get_growth_interval()
        return ScaleMonitor(CPU, init_scale=self.scaler.get_scale(), growth_interval=interval)


def monitor_at(scale, device=CPU):
    return ScaleMonitor(device, init_scale=scale, growth_interval=2000)


def values(monitor):
    return {key: tensor.item() for key, tensor in monitor.tensors().items()}


def test_counts_equal_the_scalers_through_overflow_and_growth():
    training = Training(init_scale=2.0**10, growth_interval=3)
    monitor = training.monitor()
    overflows = [0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    for attempted, overflow in enumerate(overflows, start=1):
        scale = training.scaler.get_scale()
        training.step(monitor, bool(overflow))
        assert values(monitor) == {
            "amp/scale": scale,
            "amp/growth_tracker": training.scaler.state_dict()["_growth_tracker"],
            "amp/skipped_steps": attempted - training.num_applied,
            "amp/applied_steps": training.num_applied,
        }
    assert 0 < training.num_applied < len(overflows)


@pytest.mark.parametrize("num_unread", [5, 64, 150])
def test_counts_read_after_many_steps_are_those_of_every_step(num_unread):
    training = Training(init_scale=2.0**60, growth_interval=7)
    monitor = training.monitor()
    random = Random(num_unread)
    for attempted in range(1, 3 * num_unread + 1):
        training.step(monitor, overflow=random.random() < 0.1)
        if attempted % num_unread == 0:
            assert values(monitor)["amp/growth_tracker"] == training.scaler.state_dict()["_growth_tracker"]
            assert values(monitor)["amp/skipped_steps"] == attempted - training.num_applied


def test_the_tracker_restarts_where_the_scale_cannot_grow():
    training = Training(init_scale=2.0**127, growth_interval=2)
    training.model.requires_grad_(False).bias.requires_grad_(True)
    monitor = training.monitor()
    for _ in range(5):
        training.scaler.scale(1e-3 * training.model.bias.sum()).backward()
        training.end_step(monitor)
        assert values(monitor)["amp/growth_tracker"] == training.scaler.state_dict()["_growth_tracker"]
    assert training.scaler.get_scale() == 2.0**127
    assert training.num_applied == 5


def test_counting_goes_on_where_a_checkpoint_stopped():
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
    monitor.observe(torch.tensor(1.0))
    assert values(monitor)["amp/skipped_steps"] == beyond + 1
    assert values(monitor)["amp/applied_steps"] == beyond + 1


def test_values_already_taken_do_not_change_later():
    monitor = monitor_at(2.0)
    monitor.observe(torch.tensor(1.0))
    taken = monitor.tensors()
    monitor.observe(torch.tensor(0.5))
    assert taken["amp/skipped_steps"].item() == 1


def test_before_any_step_nothing_is_told():
    assert monitor_at(2.0).tensors() == {}


def test_observing_reads_no_value_from_the_device():
    monitor = monitor_at(1.0)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        monitor.observe(torch.ones(()))
        monitor.tensors()
    names = {event.name for event in profiled.events()}
    assert "aten::lt" in names
    assert "aten::_local_scalar_dense" not in names


@needs_cuda
def test_observing_makes_no_host_wait_for_cuda():
    monitor, after = monitor_at(2.0, torch.device("cuda")), torch.tensor(1.0, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        monitor.observe(after)
        monitor.tensors()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert values(monitor)["amp/skipped_steps"] == 1
