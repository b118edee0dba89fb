"""The learning rate by hand, as a function of applied steps, on the host and on the device."""

import math

import pytest
import torch
from torch import nn

from ampsweep.config.schema import SchedulerConfig
from ampsweep.training.schedule import Schedule

PEAK = 0.01


def optimizer_of(*lrs, kind=torch.optim.AdamW, **options):
    groups = [{"params": [nn.Parameter(torch.ones(3))], "lr": lr} for lr in lrs or (PEAK,)]
    return kind(groups, lr=PEAK, **({"fused": True} | options))


def schedule_of(name, num_steps=10, *, warmup=0, floor=0.0, on_device=False, optimizer=None):
    config = SchedulerConfig(name=name, num_warmup_steps=warmup, min_lr_ratio=floor)
    return Schedule(config, optimizer or optimizer_of(), num_steps, on_device=on_device)


@pytest.mark.parametrize(
    ("name", "warmup", "floor", "factors"),
    [
        ("constant", 0, 0.0, [1, 1, 1, 1, 1]),
        ("constant", 3, 0.0, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        ("linear", 0, 0.0, [1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]),
        ("linear", 1, 0.5, [1 / 2, 1, 7 / 8, 6 / 8, 5 / 8]),
        ("cosine", 1, 0.0, [1 / 2, 1, (1 + math.sqrt(0.5)) / 2, 1 / 2, (1 - math.sqrt(0.5)) / 2]),
        ("cosine", 1, 0.5, [1 / 2, 1, 0.5 + (1 + math.sqrt(0.5)) / 4, 3 / 4, 0.5 + (1 - math.sqrt(0.5)) / 4]),
    ],
)
def test_the_shape_is_the_one_worked_out_by_hand(name, warmup, floor, factors):
    schedule = schedule_of(name, 5, warmup=warmup, floor=floor)
    assert [schedule.factor(step) for step in range(5)] == pytest.approx(factors)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_beyond_its_length_a_schedule_stays_at_its_floor(name):
    schedule = schedule_of(name, floor=0.1)
    assert [schedule.factor(step) for step in (10, 11, 1000)] == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize("warmup", [10, 25])
def test_a_warm_up_as_long_as_the_run_or_longer_only_rises(warmup):
    schedule = schedule_of("cosine", warmup=warmup)
    factors = [schedule.factor(step) for step in range(10)]
    assert factors == sorted(factors)
    assert factors[-1] <= 1


def test_the_rate_depends_on_applied_steps_alone():
    schedule = schedule_of("cosine")
    seen = []
    for applied in (0, 1, 1, 1, 2):  # two steps in the middle were skipped
        schedule.set(applied)
        seen.append(schedule.learning_rate())
    assert seen == [PEAK * schedule.factor(applied) for applied in (0, 1, 1, 1, 2)]
    assert seen[1] == seen[2] == seen[3] > seen[4]


def test_each_group_keeps_its_own_peak():
    optimizer = optimizer_of(0.1, 0.001)
    schedule = schedule_of("linear", optimizer=optimizer)
    schedule.set(5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.0005])


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_on_the_device_the_rate_is_the_hosts_to_float32_rounding(name, warmup):
    host, device = (schedule_of(name, 20, warmup=warmup, on_device=on_device) for on_device in (False, True))
    for applied in range(20):
        host.set(applied)
        device.set(torch.tensor(applied))
        rate = device.learning_rate()
        assert (rate.dtype, rate.shape) == (torch.float32, ())
        assert rate.item() == pytest.approx(host.learning_rate(), rel=2**-23)


def test_on_the_device_the_rate_is_changed_in_place_so_that_nothing_is_allocated():
    optimizer = optimizer_of()
    schedule = schedule_of("cosine", on_device=True, optimizer=optimizer)
    address = optimizer.param_groups[0]["lr"].data_ptr()
    schedule.set(torch.tensor(3))
    assert optimizer.param_groups[0]["lr"].data_ptr() == address


def test_a_constant_rate_stays_a_plain_number():
    optimizer = optimizer_of()
    schedule = schedule_of("constant", on_device=True, optimizer=optimizer)
    schedule.set(torch.tensor(3))
    assert optimizer.param_groups[0]["lr"] == PEAK
    assert isinstance(schedule.learning_rate(), float)


def test_a_schedule_reaches_the_optimizer_also_after_its_state_was_loaded():
    optimizer = optimizer_of()
    schedule = schedule_of("linear", optimizer=optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    schedule.set(5)
    assert optimizer.param_groups[0]["lr"] == PEAK / 2


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_a_fused_optimizer_trains_the_same_with_a_rate_on_the_device(kind, options):
    def trained(on_device):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = kind(model.parameters(), lr=PEAK, fused=True, **options)
        schedule = schedule_of("cosine", 20, warmup=3, on_device=on_device, optimizer=optimizer)
        for step in range(20):
            schedule.set(torch.tensor(step) if on_device else step)
            model(torch.linspace(-1, 1, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach()

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-5, atol=1e-7)
