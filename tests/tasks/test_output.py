"""A model may return its tensor within something else: the task is told the name of it."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from ampsweep.tasks.base import OutputError, output_tensor
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.regression import Regression

LOGITS, HIDDEN = torch.zeros(2, 3), torch.ones(4)
Named = namedtuple("Named", "logits hidden")


@dataclass(slots=True)
class Slotted:
    logits: Tensor
    hidden: Tensor
    note: str = "text"


class Lazy:
    """Has its tensors as properties."""

    logits = property(lambda self: LOGITS)
    hidden = property(lambda self: HIDDEN)


OUTPUTS = {
    "dict": {"logits": LOGITS, "hidden": HIDDEN, "loss": None},
    "OrderedDict": OrderedDict(logits=LOGITS, hidden=HIDDEN),
    "Named": Named(LOGITS, HIDDEN),
    "SimpleNamespace": SimpleNamespace(logits=LOGITS, hidden=HIDDEN, note="text"),
    "Slotted": Slotted(LOGITS, HIDDEN),
    "Lazy": Lazy(),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_part_is_found_by_its_name(kind):
    assert output_tensor(OUTPUTS[kind], "logits") is LOGITS
    assert output_tensor(OUTPUTS[kind], "hidden") is HIDDEN


@pytest.mark.parametrize("output", [(HIDDEN, LOGITS), [HIDDEN, LOGITS], Named(HIDDEN, LOGITS), {0: HIDDEN, 1: LOGITS}])
def test_a_part_is_found_by_its_index(output):
    assert output_tensor(output, "1") is LOGITS


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_wrong_name_is_answered_with_those_there_are(kind):
    with pytest.raises(OutputError) as raised:
        output_tensor(OUTPUTS[kind], "logit")
    told, names = str(raised.value).split(" with the tensors ")
    assert told == f"task.output=logit: the model returns a {kind}"
    assert sorted(names.split(", ")) == ["hidden", "logits"]


@pytest.mark.parametrize(
    ("output", "name", "sentence"),
    [
        ((LOGITS, "x"), "1", "task.output=1: the model returns a tuple with the tensor 0"),
        ((LOGITS,), "1", "task.output=1: the model returns a tuple with the tensor 0"),
        ({}, "logits", "task.output=logits: the model returns a dict, which holds no tensor"),
        (None, "logits", "task.output=logits: the model returns a NoneType, which holds no tensor"),
        (LOGITS, "T", "task.output=T: the model returns a Tensor, which has no parts"),
        (
            {"logits": LOGITS, "hidden": HIDDEN},
            None,
            "the model returns a dict with the tensors logits, hidden; task.output must name the one that the task "
            "takes",
        ),
    ],
)
def test_what_is_no_tensor_is_refused(output, name, sentence):
    with pytest.raises(OutputError) as raised:
        output_tensor(output, name)
    assert str(raised.value) == sentence


class Returns(nn.Module):
    """Returns what a model computes, wrapped."""

    def __init__(self, model, wrap):
        super().__init__()
        self.model, self.wrap = model, wrap

    def forward(self, inputs):
        return self.wrap(self.model(inputs))


TASKS = {
    Classification: (torch.randn(4, 5), torch.randint(3, (4,))),
    Regression: (torch.randn(4, 5), torch.randn(4, 3)),
    LanguageModeling: (torch.randn(4, 2, 5), torch.randint(3, (4, 2))),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_computes_the_same_of_a_named_output(task):
    bare, batch = nn.Linear(5, 3), TASKS[task]
    wrapped = Returns(bare, lambda output: {"hidden": batch[0], "logits": output})
    plain, named = task(), task(output="logits")

    assert torch.equal(named.loss(wrapped, batch), plain.loss(bare, batch))
    assert named.evaluate(wrapped, batch) == plain.evaluate(bare, batch)
