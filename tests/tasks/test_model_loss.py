"""Models that return their own loss train as they are."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.tasks.model_loss import ModelLoss

BATCH = (torch.randn(4, 3), torch.randn(4, 2))


class SelfTaught(nn.Linear):
    """A linear model that returns its loss wrapped by ``wrap``."""

    def __init__(self, wrap):
        super().__init__(3, 2)
        self.wrap = wrap

    def forward(self, inputs, targets):
        return self.wrap(F.mse_loss(super().forward(inputs), targets))


def test_the_loss_is_found_where_models_put_it():
    for wrap in (
        lambda loss: loss,
        lambda loss: (loss, "logits"),
        lambda loss: [loss],
        lambda loss: {"logits": None, "loss": loss},
        lambda loss: SimpleNamespace(loss=loss),
    ):
        model = SelfTaught(wrap)
        loss = ModelLoss().loss(model, BATCH)
        assert torch.equal(loss, F.mse_loss(F.linear(BATCH[0], model.weight, model.bias), BATCH[1]))
        loss.backward()
        assert model.weight.grad.any()


def test_an_output_without_a_loss_is_refused():
    for wrap, sentence in (
        (lambda loss: None, "got NoneType without a loss"),
        (lambda loss: (), "got tuple without a loss"),
        (lambda loss: {"logits": loss}, "got dict without a loss"),
        (lambda loss: SimpleNamespace(logits=loss), "got SimpleNamespace without a loss"),
        (lambda loss: loss.item(), "got float without a loss"),
        (lambda loss: loss.expand(4), r"the model's loss must be a scalar, got shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ModelLoss().loss(SelfTaught(wrap), BATCH)


@pytest.mark.parametrize(
    ("task", "positional", "named"),
    [
        (ModelLoss(), ("x", "y"), {}),
        (ModelLoss(targets="inputs"), ("x", "x"), {}),
        (ModelLoss(target_argument="labels"), ("x",), {"labels": "y"}),
        (ModelLoss("input_ids", "labels"), (), {"input_ids": "x", "labels": "y"}),
        (ModelLoss("input_ids", "labels", "inputs"), (), {"input_ids": "x", "labels": "x"}),
    ],
)
def test_a_batch_is_passed_as_the_task_says(task, positional, named):
    calls = []
    model = lambda *positional, **named: calls.append((positional, named)) or torch.zeros(())  # noqa: E731
    task.loss(model, ("x", "y"))
    assert calls.pop() == (positional, named)
    mapping = {"inputs": torch.zeros(3), "mask": torch.ones(3)}
    assert task.evaluate(model, mapping)[1] == 3
    assert calls.pop()[1].keys() == mapping.keys()


def test_a_hugging_face_model_shifts_the_labels_itself():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model, tokens = transformers.GPT2LMHeadModel(config).eval(), torch.randint(11, (3, 8))
    task = ModelLoss(input_argument="input_ids", target_argument="labels", targets="inputs")
    loss = task.loss(model, (tokens, tokens.roll(-1, dims=1)))
    expected = F.cross_entropy(model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match='targets must be "targets" or "inputs", got \'labels\''):
        ModelLoss(targets="labels")
    with pytest.raises(ValueError, match="target_argument must be named when input_argument is"):
        ModelLoss(input_argument="input_ids")
