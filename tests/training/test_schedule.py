"""The learning rate is a function of applied steps, on the host and on the device alike."""

import copy
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from assembled import MLP, assemble
from torch import nn

from ampsweep.config.schema import SchedulerConfig
from ampsweep.training.schedule import Schedule

PEAK = 0.5
SHAPES = {
    "constant": (SchedulerConfig(name="constant"), [1, 1, 1, 1, 1, 1, 1, 1]),
    "constant after a warm-up": (SchedulerConfig(name="constant", num_warmup_steps=3), [1 / 4, 1 / 2, 3 / 4, 1, 1]),
    "linear": (SchedulerConfig(name="linear"), [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0]),
    "linear to a tenth after a warm-up": (
        SchedulerConfig(name="linear", num_warmup_steps=4, min_lr_ratio=0.1),
        [0.2, 0.4, 0.6, 0.8, 1, 0.775, 0.55, 0.325, 0.1, 0.1],
    ),
    "cosine": (SchedulerConfig(name="cosine"), [1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060, 0]),
    "cosine to a half": (SchedulerConfig(name="cosine", min_lr_ratio=0.5), [1, 0.980970, 0.926777, 0.845671, 0.75]),
    "a warm-up longer than the run": (SchedulerConfig(name="cosine", num_warmup_steps=15), [1 / 16, 2 / 16, 3 / 16]),
}
"""Settings, and shares of the peak worked out by hand, for a run of eight steps."""
VARYING = {name: asdict(config) for name, (config, _) in SHAPES.items() if name != "constant"}


def optimizer_of(kind=torch.optim.SGD, *, lr=PEAK, **options):
    torch.manual_seed(0)
    return kind(nn.Linear(4, 4).parameters(), lr=lr, fused=True, **options)


def rates(schedule, applied):
    """The learning rate after each of these numbers of applied steps."""
    found = []
    for number in applied:
        schedule.set(number)
        found.append(float(schedule.learning_rate()))
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_the_values_worked_out_by_hand(name):
    config, shares = SHAPES[name]
    schedule = Schedule(asdict(config), [optimizer_of()], 8, on_device=False)
    assert rates(schedule, range(len(shares))) == pytest.approx([PEAK * share for share in shares], abs=1e-6)


@pytest.mark.parametrize("name", VARYING)
def test_the_device_holds_the_same_rates_as_the_host(name):
    on_host = Schedule(VARYING[name], [optimizer_of()], 8, on_device=False)
    on_device = Schedule(VARYING[name], [optimizer_of()], 8, on_device=True)
    as_tensors = [torch.tensor(step) for step in range(8)]
    assert rates(on_device, as_tensors) == pytest.approx(rates(on_host, range(8)), rel=1e-6)


def test_beyond_its_schedule_a_run_keeps_the_last_rate():
    schedule = Schedule(VARYING["linear"], [optimizer_of()], 8, on_device=True)
    assert rates(schedule, [torch.tensor(7), torch.tensor(100)]) == [PEAK / 8, PEAK / 8]


@pytest.mark.parametrize("on_device", [False, True])
def test_a_constant_rate_is_always_a_plain_number(on_device):
    optimizer = optimizer_of()
    schedule = Schedule({"name": "constant"}, [optimizer], 8, on_device=on_device)
    schedule.set(torch.tensor(3) if on_device else 3)
    assert schedule.learning_rate() == PEAK
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_every_group_keeps_its_own_peak():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [weight], "lr": lr} for weight, lr in zip(weights, (0.1, 0.2), strict=True)]
    for on_device in (False, True):
        optimizer = torch.optim.SGD(copy.deepcopy(groups), fused=True)
        schedule = Schedule(VARYING["linear"], [optimizer], 8, on_device=on_device)
        schedule.set(torch.tensor(4) if on_device else 4)
        assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize(("kind", "lr"), [(torch.optim.AdamW, 1e-2), (torch.optim.SGD, 1e-1)])
def test_a_rate_on_the_device_trains_as_one_on_the_host_does(kind, lr):
    trained = []
    for on_device in (False, True):
        optimizer = optimizer_of(kind, lr=lr)
        schedule = Schedule({"name": "cosine", "num_warmup_steps": 5}, [optimizer], 40, on_device=on_device)
        parameters = optimizer.param_groups[0]["params"]
        for step in range(40):
            schedule.set(torch.tensor(step) if on_device else step)
            sum((parameter - 1).square().sum() for parameter in parameters).backward()
            optimizer.step()
            optimizer.zero_grad()
        trained.append([parameter.detach() for parameter in parameters])
    for on_host, on_device in zip(*trained, strict=True):
        torch.testing.assert_close(on_device, on_host, rtol=1e-5, atol=1e-6)
        assert not torch.equal(on_host, torch.ones_like(on_host))


@pytest.mark.parametrize("on_device", [False, True])
def test_the_rate_reaches_an_optimizer_whose_state_was_loaded(on_device):
    optimizer = optimizer_of(momentum=0.9)
    schedule = Schedule(VARYING["linear"], [optimizer], 8, on_device=on_device)
    optimizer.load_state_dict(optimizer.state_dict())
    schedule.set(torch.tensor(4) if on_device else 4)
    (group,) = optimizer.param_groups
    assert float(group["lr"]) == float(schedule.learning_rate()) == PEAK / 2
    before = group["params"][0].detach().clone()
    group["params"][0].sum().backward()
    optimizer.step()
    torch.testing.assert_close(group["params"][0], before - PEAK / 2)


@pytest.mark.parametrize("fused", ["true", "false"])
def test_a_skipped_step_does_not_advance_it(fused):
    training = assemble(
        *MLP,
        "precision=amp_fp16",
        "precision.init_scale=67108864",
        f"optimizer.fused={fused}",
        "scheduler=linear",
        "trainer.steps=16",
    )
    training.train()
    applied = [0, *(int(row["amp/applied_steps"]) for row in training.rows)]
    assert any(before == after for before, after in pairwise(applied)), "some steps were skipped"
    assert applied[-1] > 4, "and some were not"
    expected = [1e-3 * (1 - before / 16) for before in applied[:-1]]
    assert list(training.column("train/lr").values()) == pytest.approx(expected, rel=1e-6)
