"""Before any work: model, data and task are tried together as a training does it, without its memory and its time."""

import random

import numpy as np
import own_tasks
import pytest
import torch

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.sweep.device_checks import too_large
from ampsweep.sweep.model_check import check_model
from ampsweep.sweep.preflight import Checked
from ampsweep.training.components.built import build_data

CPU = torch.device("cpu")
OWN_NET = ("model=custom", "model._target_=own_tasks.Net", "data=digits")


def checked(*overrides):
    config = compose_one(["device=cpu", "tracking=disabled", *overrides])
    return config, check_model(config, build_data(config, CPU))


def own(task, *overrides):
    return checked(*OWN_NET, "task=custom", f"task._target_=own_tasks.{task}", *overrides)


def test_a_task_that_trains_is_accepted_and_no_random_state_changes():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    own_tasks.Seen.calls.clear()
    suites = ("model=mlp_small", "model.hidden_size=8", "model.num_layers=2")
    for task in ("Own", "Penalized", "ByHand", "Looking", "Seen"):
        for model in ((*OWN_NET, "model.name=net"), suites)[: 1 if task == "ByHand" else 2]:
            _, found = checked(*model, "task=custom", f"task._target_=own_tasks.{task}")
            assert found.output_bytes > 0
            assert {parameter.device.type for parameter in found.model.parameters()} == {"meta"}
            assert not any(parameter.grad is not None for parameter in found.model.parameters())
    assert states() == before
    assert own_tasks.Seen.calls[:4] == [
        ("loss", True, True, "meta"),
        ("loss", True, True, "meta"),
        ("after_step", True, False, "meta"),
        ("evaluate", False, False, "meta"),
    ], "as in a training"


NOT_TRAINABLE = {
    "OddLoss kind=Vector": r"the loss must be a scalar, got shape \(64,\)",
    "OddLoss kind=Number": "the loss must be a tensor, or several in a tuple, got float",
    "OddLoss kind=Nothing": "the loss must be a tensor, or several in a tuple, got an empty tuple",
    "OddLoss kind=Detached": "the loss has no gradient: it is detached, or computed from nothing that is trained",
    "OddLoss kind=NotDifferentiable": "RuntimeError: rounding has no gradient",
    "OddEvaluation kind=Absent": "TypeError: 'NoneType' object is not callable",
    "OddEvaluation kind=Broken": "RuntimeError: ",
    "OddEvaluation kind=Bare": "evaluate must return a mapping of means and a count, got dict",
    "OddEvaluation kind=Float": "evaluate must return means that are scalar tensors, got float as loss",
    "OddEvaluation kind=Uncounted": "evaluate must return the number of items that its means are of, got NoneType",
    "BrokenAfterStep": "RuntimeError: no target network",
    "LookingInVain": "RuntimeError: no evaluation",
}
NO_TURNS = {
    "NoTurn": "task=custom has no turns: AttributeError: 'NoTurn' object has no attribute 'loss'",
    "OddTurns turns=3": "a task's turns must be a list of ampsweep.tasks.base.Turn, got int",
    "OddTurns turns=[judge]": "a task's turns must be a list of ampsweep.tasks.base.Turn, got str",
}


def test_an_error_that_a_training_would_find_is_found_before():
    cannot = "model=custom cannot be trained on data=digits with task=custom: "
    for task, sentence in ({task: cannot + said for task, said in NOT_TRAINABLE.items()} | NO_TURNS).items():
        name, *arguments = task.split()
        with pytest.raises(UserError, match=sentence):
            own(name, *(f"+task.{argument}" for argument in arguments))
    wrapped = ("model=custom", "model._target_=own_tasks.Wrapped", "data=digits")
    names = "the model returns a dict with the tensors logits, hidden"
    with pytest.raises(UserError, match=f"{names}; task.output must name the tensor that the task"):
        checked(*wrapped)
    with pytest.raises(UserError, match=f"task.output=logit: {names}"):
        checked(*wrapped, "task.output=logit")
    checked(*wrapped, "task.output=logits")


class OneBatch:
    """Data of which only the beginning may be read."""

    def __init__(self, data):
        self._data = data

    def __getattr__(self, name):
        return getattr(self._data, name)

    def val_batches(self):
        yield next(self._data.val_batches())
        raise AssertionError("a whole validation set was read")


def test_no_more_than_a_batch_is_evaluated():
    config = compose_one(["device=cpu", *OWN_NET, "task=custom", "task._target_=own_tasks.Own"])
    check_model(config, OneBatch(build_data(config, CPU)))


@pytest.mark.parametrize(("limit_gib", "is_traced"), [(1, False), (0.0001, True)])
def test_a_step_is_traced_only_where_it_may_not_fit(limit_gib, is_traced):
    config, found = checked("model=mlp_small", "data=digits", f"trainer.memory_limit_gib={limit_gib}")
    size = sum(parameter.numel() for parameter in found.model.parameters())
    sentence = too_large(config, CPU, Checked(num_parameters=size, output_bytes=found.output_bytes))
    assert (sentence is not None) == is_traced
