"""A model may return its tensor within something else: the task names it."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampsweep.tasks.base import OutputError, output_tensor
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.regression import Regression

LOGITS, HIDDEN = torch.zeros(2, 3), torch.ones(4)
BOTH = {"logits": LOGITS, "hidden": HIDDEN}
Named = namedtuple("Named", "logits hidden")


class Lazy:
    logits, hidden = property(lambda self: LOGITS), property(lambda self: HIDDEN)


def test_a_tensor_is_found_by_its_name_or_index():
    for output in (BOTH | {"loss": None}, Named(LOGITS, HIDDEN), SimpleNamespace(**BOTH, note="text"), Lazy()):
        assert output_tensor(output, "logits") is LOGITS
        assert output_tensor(output, "hidden") is HIDDEN
        with pytest.raises(OutputError) as raised:
            output_tensor(output, "logit")
        kind, names = str(raised.value).split(" with the tensors ")
        assert kind == f"task.output=logit: the model returns a {type(output).__name__}"
        assert sorted(names.split(", ")) == ["hidden", "logits"]
    for output in ((HIDDEN, LOGITS), [HIDDEN, LOGITS], Named(HIDDEN, LOGITS), {0: HIDDEN, 1: LOGITS}):
        assert output_tensor(output, "1") is LOGITS


def test_an_output_without_the_tensor_is_refused():
    for output, name, sentence in (
        ((LOGITS, "x"), "1", "task.output=1: the model returns a tuple with the tensor 0"),
        ((LOGITS,), "1", "task.output=1: the model returns a tuple with the tensor 0"),
        ({}, "logits", "task.output=logits: the model returns a dict, which holds no tensor"),
        (LOGITS, "T", "task.output=T: the model returns a Tensor, which has no items"),
        (BOTH, None, "the model returns a dict with the tensors logits, hidden; task.output must name the tensor that"),
    ):
        with pytest.raises(OutputError, match=f"^{sentence}"):
            output_tensor(output, name)


class Returns(nn.Linear):
    """Returns its output in a dict."""

    def forward(self, inputs):
        return {"hidden": inputs, "logits": super().forward(inputs)}


def test_a_task_computes_the_same_from_a_named_output():
    bare, wrapped = nn.Linear(5, 3), Returns(5, 3)
    wrapped.load_state_dict(bare.state_dict())
    for task, batch in (
        (Classification, (torch.randn(4, 5), torch.randint(3, (4,)))),
        (Regression, (torch.randn(4, 5), torch.randn(4, 3))),
        (LanguageModeling, (torch.randn(4, 2, 5), torch.randint(3, (4, 2)))),
    ):
        plain, named = task(), task(output="logits")
        assert torch.equal(named.loss(wrapped, batch), plain.loss(bare, batch))
        assert named.evaluate(wrapped, batch) == plain.evaluate(bare, batch)
