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


@pytest.mark.parametrize("task", ["Own", "Penalized", "ByHand", "Looking", "Seen"])
@pytest.mark.parametrize("model", [OWN_NET, ("model=mlp_small",)], ids=["own", "suite's"])
def test_a_task_that_trains_is_taken(task, model):
    if task == "Seen" and model != OWN_NET:
        model = (*model, "model.hidden_size=8", "model.num_layers=2")
    _, found = checked(*model, "task=custom", f"task._target_=own_tasks.{task}")
    assert found.output_bytes > 0
    assert {parameter.device.type for parameter in found.model.parameters()} == {"meta"}
    assert not any(parameter.grad is not None for parameter in found.model.parameters())


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("Vector", r"the loss must be a scalar, got shape \(64,\)"),
        ("Number", "the loss must be a tensor, or several in a tuple, got float"),
        ("Nothing", "the loss must be a tensor, or several in a tuple, got an empty tuple"),
        ("Detached", "the loss has no gradient: it is detached, or computed from nothing that is trained"),
        ("NotDifferentiable", "RuntimeError: rounding has no gradient"),
        ("NoEvaluation", "TypeError: 'NoneType' object is not callable"),
        ("BrokenEvaluation", "RuntimeError: "),
        ("BareEvaluation", "evaluate must return a mapping of means and a count, got dict"),
        ("FloatEvaluation", "evaluate must return means that are scalar tensors, got float as loss"),
        ("Uncounted", "evaluate must return the number of items that its means are of, got NoneType"),
        ("BrokenAfterStep", "RuntimeError: no target network"),
        ("LookingInVain", "RuntimeError: "),
    ],
)
def test_what_a_training_would_find_is_found_before(task, sentence):
    named = f"model=custom cannot be trained on data=digits with task=custom: {sentence}"
    with pytest.raises(UserError, match=named):
        own(task)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("NoTurn", "task=custom has no turns: AttributeError: 'NoTurn' object has no attribute 'loss'"),
        ("NumberOfTurns", "a task's turns must be a list of ampsweep.tasks.base.Turn, got int"),
        ("NamesOfTurns", "a task's turns must be a list of ampsweep.tasks.base.Turn, got str"),
    ],
)
def test_what_has_no_turns_is_refused(task, sentence):
    with pytest.raises(UserError, match=sentence):
        own(task)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "the model returns a dict with the tensors logits, hidden; task.output must name the one that the task"),
        (("task.output=logit",), "task.output=logit: the model returns a dict with the tensors logits, hidden"),
    ],
)
def test_a_wrong_output_is_answered_with_those_there_are(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        checked("model=custom", "model._target_=own_tasks.Wrapped", "data=digits", *overrides)
    checked("model=custom", "model._target_=own_tasks.Wrapped", "data=digits", "task.output=logits")


def test_code_is_called_as_in_a_training():
    own_tasks.Seen.calls.clear()
    own("Seen")
    assert own_tasks.Seen.calls == [
        ("loss", True, True, "meta"),
        ("loss", True, True, "meta"),
        ("after_step", True, False, "meta"),
        ("evaluate", False, False, "meta"),
    ]


@pytest.mark.parametrize("task", ["Own", "Looking"])
def test_a_check_changes_no_random_state(task):
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    own(task, "model.name=net")
    assert states() == before


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
