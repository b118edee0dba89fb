"""The learning rate is a function of applied steps, on the host and on the device alike."""

import copy
import functools
from dataclasses import asdict
from itertools import pairwise

import own_optimizers
import pytest
import torch
from assembled import MLP, assemble
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.schema import SchedulerConfig
from ampsweep.training.components.learning_rates import Schedule, check_rates

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


def scheduled(settings, optimizers, *, on_device=False, num_steps=8):
    config = {"name": "custom", **settings}
    return Schedule(config, optimizers, num_steps, on_device=on_device)


TORCHS = {
    "an LRScheduler": ({"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.5}, None),
    "with restarts": (
        {"_target_": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", "T_0": 3, "T_mult": 2},
        None,
    ),
    "one cycle": (
        {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 0.1, "total_steps": 8, "cycle_momentum": False},
        None,
    ),
    "of a lambda": (
        {
            "_target_": "torch.optim.lr_scheduler.LambdaLR",
            "lr_lambda": {"_target_": "hydra.utils.get_method", "path": "own_optimizers.halving"},
        },
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, own_optimizers.halving),
    ),
    "a sequence": (
        {"_target_": "own_optimizers.warmed_up"},
        lambda optimizer: own_optimizers.warmed_up(optimizer, 8),
    ),
}
"""Settings, and the scheduler by hand where it is not the class with the same arguments."""


def by_torch(settings, make, optimizer):
    """The learning rates that torch's scheduler sets when it steps after each step of the optimizer."""
    if make is None:
        arguments = {key: value for key, value in settings.items() if key != "_target_"}
        make = functools.partial(getattr(torch.optim.lr_scheduler, settings["_target_"].split(".")[-1]), **arguments)
    scheduler, found = make(optimizer), []
    for _ in range(8):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def grouped():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [weight], "lr": lr} for weight, lr in zip(weights, (0.1, 0.2), strict=True)]
    return torch.optim.SGD(groups, fused=True, momentum=0.9)


@pytest.mark.parametrize("name", TORCHS)
def test_a_torch_scheduler_sets_what_it_sets_by_hand(name):
    settings, make = TORCHS[name]
    expected = by_torch(settings, make, grouped())
    for on_device in (False, True):
        optimizer = grouped()
        schedule = scheduled(settings, [optimizer], on_device=on_device)
        for applied in (0, 0, 1, 2, 2, 3, 4, 5, 6, 7):  # some steps are skipped
            schedule.set(torch.tensor(applied) if on_device else applied)
            found = [float(group["lr"]) for group in optimizer.param_groups]
            assert found == (pytest.approx(expected[applied], rel=1e-6) if on_device else expected[applied])
        assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
        assert not hasattr(optimizer.step, "_wrapped_by_lr_sched"), "it stepped a stand-in"


def test_a_resumed_run_finds_its_rate_at_once():
    settings, make = TORCHS["with restarts"]
    expected = by_torch(settings, make, optimizer_of())
    assert rates(scheduled(settings, [optimizer_of()]), [6, 7, 2]) == [expected[step][0] for step in (6, 7, 2)]


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({"_target_": "own_optimizers.halving"}, [1, 1, 1, 1, 0.5]),
        ({"_target_": "own_optimizers.power", "exponent": 2}, [1, 49 / 64, 36 / 64]),
        ({"_target_": "own_optimizers.Triangle", "peak": 2}, [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_a_function_gives_the_share_of_the_peak(settings, shares):
    schedule = scheduled(settings, [optimizer_of()])
    assert rates(schedule, range(len(shares))) == pytest.approx([PEAK * share for share in shares])


@pytest.mark.parametrize("on_device", [False, True])
def test_several_optimizers_keep_their_own_peaks(on_device):
    optimizers = [optimizer_of(lr=0.1), torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=0.2, fused=False)]
    schedule = scheduled({"_target_": "own_optimizers.halving"}, optimizers, on_device=on_device)
    schedule.set(torch.tensor(4) if on_device else 4)
    assert [float(one.param_groups[0]["lr"]) for one in optimizers] == pytest.approx([0.05, 0.1])
    assert type(optimizers[1].param_groups[0]["lr"]) is float, "a step that waits for the device anyway takes a number"


REFUSED = {
    "scheduler=OneCycleLR: OneCycleLR changes momentum too, and a scheduler here sets learning rates alone; "
    "scheduler.cycle_momentum=false leaves it": {
        "_target_": "torch.optim.lr_scheduler.OneCycleLR",
        "max_lr": 0.1,
        "total_steps": 8,
    },
    "scheduler=one_cycle: OneCycleLR changes momentum too, and a scheduler here sets learning rates alone; "
    "scheduler.cycle_momentum=false leaves it": {"_target_": "own_optimizers.one_cycle", "cycle_momentum": True},
    "scheduler=ReduceLROnPlateau: ReduceLROnPlateau needs metrics for its step, and a learning rate here is a function "
    "of applied steps alone; write it as one, or choose cosine or linear": {
        "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"
    },
    "scheduler=StepLR: TypeError: StepLR.__init__() missing 1 required positional argument: 'step_size'": {
        "_target_": "torch.optim.lr_scheduler.StepLR"
    },
    "scheduler._target_=torch.optim.swa_utils.update_nb does not import": {
        "_target_": "torch.optim.swa_utils.update_nb"
    },
    "scheduler=falls_short fails for 2 applied steps: IndexError: list index out of range": {
        "_target_": "own_optimizers.falls_short"
    },
    "scheduler=no_number gives nan for 0 applied steps": {"_target_": "own_optimizers.no_number"},
    "scheduler=sin gives -0.75": {"_target_": "math.sin"},
    "scheduler=OneCycleLR fails for 6 applied steps: Tried to step 6 times. The specified number of total steps is 5": {
        "_target_": "torch.optim.lr_scheduler.OneCycleLR",
        "max_lr": 0.1,
        "total_steps": 5,
        "cycle_momentum": False,
    },
    "scheduler._target_=own_optimizers.no_scheduler gave a int, not a torch LRScheduler": {
        "_target_": "own_optimizers.no_scheduler"
    },
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_scheduler_of_something_else_is_refused_before(sentence):
    with pytest.raises(UserError) as refused:
        check_rates({"name": "custom", **REFUSED[sentence]}, [optimizer_of(momentum=0.9)], 8)
    assert str(refused.value).startswith(sentence)
