"""The learning rate is a function of applied steps, on the host and on the device alike."""

import copy
import math
import re
from dataclasses import asdict
from functools import partial
from itertools import pairwise

import own_optimizers
import pytest
import torch
from assembled import MLP, trained
from torch import nn
from torch.optim import lr_scheduler

from ampsweep.config.components import SchedulerConfig
from ampsweep.config.errors import UserError
from ampsweep.training.components.learning_rates import Schedule, check_rates

PEAK = 0.5
TORCHS = "torch.optim.lr_scheduler."


def optimizer_of(*, lr=PEAK, **options):
    return torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=lr, fused=True, **options)


def grouped():
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": lr} for lr in (0.1, 0.2)]
    return torch.optim.SGD(groups, fused=True, momentum=0.9)


def scheduled(settings, *optimizers, on_device=False):
    return Schedule({"name": "custom", **settings}, optimizers, 8, on_device=on_device)


def rates(schedule, applied):
    """The learning rate after each of these numbers of applied steps."""
    found = []
    for number in applied:
        schedule.set(number)
        found.append(float(schedule.learning_rate()))
    return found


@pytest.mark.parametrize(
    ("name", "settings", "shares"),  # shares of the peak computed by hand, for a run of eight steps
    [
        ("constant", {}, [1] * 8),
        ("constant", {"num_warmup_steps": 3}, [1 / 4, 1 / 2, 3 / 4, 1, 1]),
        ("linear", {}, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0]),
        ("linear", {"num_warmup_steps": 4, "min_lr_ratio": 0.1}, [0.2, 0.4, 0.6, 0.8, 1, 0.775, 0.55, 0.325, 0.1, 0.1]),
        ("cosine", {}, [1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060, 0]),
        ("cosine", {"min_lr_ratio": 0.5}, [1, 0.980970, 0.926777, 0.845671, 0.75]),
        ("cosine", {"num_warmup_steps": 15}, [1 / 16, 2 / 16, 3 / 16]),  # longer than the run
    ],
)
def test_every_shape_has_the_values_computed_by_hand(name, settings, shares):
    config = asdict(SchedulerConfig(name=name, **settings))
    expected = [PEAK * share for share in shares]
    on_host = scheduled(config, optimizer_of())
    assert rates(on_host, range(len(shares))) == pytest.approx(expected, abs=1e-6)
    on_device = scheduled(config, optimizer_of(), on_device=True)
    steps = range(min(8, len(shares)))
    assert rates(on_device, map(torch.tensor, steps)) == pytest.approx(rates(on_host, steps), rel=1e-6)
    if (name, settings) == ("linear", {}):
        beyond = [torch.tensor(7), torch.tensor(100)]
        assert rates(on_device, beyond) == [PEAK / 8, PEAK / 8], "beyond its schedule a run keeps the last rate"


@pytest.mark.parametrize("on_device", [False, True])
def test_groups_and_optimizers_keep_their_own_peaks(on_device):
    half, optimizer = torch.tensor(4) if on_device else 4, optimizer_of()
    assert rates(scheduled({"name": "constant"}, optimizer, on_device=on_device), [half]) == [PEAK]
    assert type(optimizer.param_groups[0]["lr"]) is float, "a constant rate is always a plain number"
    optimizer = grouped()
    schedule = scheduled({"name": "linear"}, optimizer, on_device=on_device)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # which replaces the groups
    schedule.set(half)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.05, 0.1])
    weight = optimizer.param_groups[1]["params"][0]
    weight.sum().backward()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.ones(2) - 0.1)
    optimizers = [optimizer_of(lr=0.1), torch.optim.Adam(nn.Linear(2, 2).parameters(), lr=0.2, fused=False)]
    scheduled({"_target_": "own_optimizers.halving"}, *optimizers, on_device=on_device).set(half)
    assert [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers] == pytest.approx([0.05, 0.1])
    assert type(optimizers[1].param_groups[0]["lr"]) is float, "a step that waits for the device anyway takes a number"


def test_a_fused_optimizer_of_a_user_is_counted_on_the_device():
    chosen = ("optimizer=custom", "optimizer._target_=own_optimizers.Scaling", "scheduler=linear")
    training = trained(*MLP, *chosen, "precision=amp_fp16", "precision.init_scale=67108864", "trainer.steps=16")
    assert training.instruments.counts_on_device
    applied = [0, *(int(row["amp/applied_steps"]) for row in training.rows)]
    assert any(before == after for before, after in pairwise(applied)), "some steps were skipped"
    expected = [1e-2 * (1 - before / 16) for before in applied[:-1]]
    assert list(training.column("train/lr").values()) == pytest.approx(expected, rel=1e-6)


LAMBDA = {"_target_": "hydra.utils.get_method", "path": "own_optimizers.halving"}


@pytest.mark.parametrize(
    ("target", "arguments", "by_hand"),  # `by_hand` where it is not the class with the same arguments
    [
        (f"{TORCHS}CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}, None),
        (f"{TORCHS}OneCycleLR", {"max_lr": 0.1, "total_steps": 8, "cycle_momentum": False}, None),
        (f"{TORCHS}LambdaLR", {"lr_lambda": LAMBDA}, partial(lr_scheduler.LambdaLR, lr_lambda=own_optimizers.halving)),
        ("own_optimizers.warmed_up", {}, partial(own_optimizers.warmed_up, num_steps=8)),
    ],
)
def test_a_torch_scheduler_sets_the_same_as_by_hand(target, arguments, by_hand):
    optimizer, expected = grouped(), []
    scheduler = (by_hand or partial(getattr(lr_scheduler, target.removeprefix(TORCHS)), **arguments))(optimizer)
    for _ in range(8):
        expected.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    for on_device in (False, True):
        optimizer = grouped()
        schedule = scheduled({"_target_": target, **arguments}, optimizer, on_device=on_device)
        for applied in (0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 2):  # some steps are skipped; a resumed run begins anywhere
            schedule.set(torch.tensor(applied) if on_device else applied)
            found = [float(group["lr"]) for group in optimizer.param_groups]
            assert found == (pytest.approx(expected[applied], rel=1e-6) if on_device else expected[applied])
        assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
        assert not hasattr(optimizer.step, "_wrapped_by_lr_sched"), "it stepped a stand-in"


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({"_target_": "own_optimizers.halving"}, [1, 1, 1, 1, 0.5]),
        ({"_target_": "own_optimizers.power", "exponent": 2}, [1, 49 / 64, 36 / 64]),
        ({"_target_": "own_optimizers.power", "num_steps": 4}, [1, 3 / 4, 2 / 4]),
        ({"_target_": "own_optimizers.Shares", "_args_": [[0, 0.5, 1, 0.5, 0]]}, [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_a_function_gives_the_share_of_the_peak(settings, shares):
    schedule = scheduled(settings, optimizer_of())
    assert rates(schedule, range(len(shares))) == pytest.approx([PEAK * share for share in shares])


MOMENTUM = "changes momentum too, and a scheduler here sets learning rates alone; scheduler.cycle_momentum=false leaves"
CYCLE = {"max_lr": 0.1, "total_steps": 5}


@pytest.mark.parametrize(
    ("target", "settings", "sentence"),
    [
        (f"{TORCHS}OneCycleLR", CYCLE, f"OneCycleLR: OneCycleLR {MOMENTUM} it"),
        (f"{TORCHS}OneCycleLR", CYCLE | {"cycle_momentum": False}, "OneCycleLR fails for 6 applied steps: Tried to "),
        ("own_optimizers.ByLoss", {}, "ByLoss: ByLoss needs loss for its step, and a "),
        ("own_optimizers.Shares", {"_args_": [[1.0, 0.5]]}, "Shares fails for 2 applied steps: IndexError: list index"),
        ("own_optimizers.Shares", {"_args_": [[math.nan]]}, "Shares gives nan for 0 applied steps"),
        ("math.sin", {}, "sin gives -0.75"),
        ("own_optimizers.no_scheduler", {}, "own_optimizers.no_scheduler gave a int, not a torch LRScheduler"),
    ],
)
def test_a_scheduler_that_does_something_else_is_refused(target, settings, sentence):
    with pytest.raises(UserError, match=rf"^scheduler(\._target_)?={re.escape(sentence)}"):
        check_rates({"_target_": target, "name": "custom", **settings}, [optimizer_of(momentum=0.9)], 8)
