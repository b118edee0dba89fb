"""Every task: a loss computed by hand, evaluation that agrees with it, and outputs as models return them."""

import math
from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.tasks.base import OutputError, output_tensor
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.gan import GAN
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.model_loss import ModelLoss
from ampsweep.tasks.regression import Regression


class Autoencoder(nn.Linear):
    def forward(self, inputs, targets):
        return (super().forward(inputs) - targets).square().mean()


INPUTS, VALUES, TOKENS = torch.randn(4, 5), torch.randn(4, 3), torch.randint(11, (3, 9))
TASKS = [  # each with a model, a batch and the number of its items
    (LanguageModeling(), partial(GPT, 11, 8, 1, 8, 2), (TOKENS[:, :-1], TOKENS[:, 1:]), 24),
    (Classification(label_smoothing=0.1), partial(MLP, 5, 7, 3, 2), (INPUTS, torch.randint(3, (4,))), 4),
    (Regression(), partial(MLP, 5, 7, 3, 2), (INPUTS, VALUES), 4),
    (ModelLoss(targets="inputs"), partial(Autoencoder, 5, 5), (INPUTS, VALUES), 4),
]


@pytest.mark.parametrize(("task", "build", "batch", "num_items"), TASKS)
def test_loss_and_evaluation_agree_and_read_no_value(task, build, batch, num_items):
    torch.manual_seed(0)
    model = build()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        loss = task.loss(model, batch)
        values, count = task.evaluate(model, batch)
    assert "aten::_local_scalar_dense" not in {event.key for event in trace.key_averages()}
    assert torch.equal(values["loss"], loss.detach())
    assert count == num_items
    assert all(value.shape == () and not value.requires_grad for value in values.values()), "no graph is kept"
    loss.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            loss, (values, _) = task.loss(model, batch), task.evaluate(model, batch)
        assert loss.dtype is values["loss"].dtype is torch.float32
    if not isinstance(task, ModelLoss):
        low = tuple(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in batch)
        assert task.loss(model.bfloat16(), low).dtype is torch.float32


def fixed(output):
    """A model of the same output whatever the input."""
    return lambda inputs: torch.tensor(output)


NOTHING = torch.empty(0)


def test_losses_and_accuracy_are_those_computed_by_hand():
    thirds = [math.log(1), math.log(2)]  # probabilities 1/3 and 2/3
    batch = (NOTHING, torch.tensor([[0, 1], [1, 1]]))
    values, num_tokens = LanguageModeling().evaluate(fixed([[thirds, thirds], [thirds, thirds]]), batch)
    assert values["loss"].item() == pytest.approx((math.log(3) + 3 * math.log(1.5)) / 4)
    assert num_tokens == 4
    logits = [[3.0, 1.0], [0.0, 2.0], [5.0, 1.0], [0.0, 1.0]]
    values, num_items = Classification().evaluate(fixed(logits), (NOTHING, torch.tensor([0, 1, 1, 1])))
    assert (values["accuracy"], num_items) == (0.75, 4)
    # Probabilities 1/4 and 3/4; the smoothed target is 0.1 and 0.9.
    loss = Classification(label_smoothing=0.2).loss(fixed([[0.0, math.log(3)]]), (NOTHING, torch.tensor([1])))
    assert loss.item() == pytest.approx(-0.1 * math.log(1 / 4) - 0.9 * math.log(3 / 4))
    loss = Regression().loss(fixed([[1.0, 2.0], [3.0, 4.0]]), (NOTHING, torch.tensor([[1.0, 0.0], [3.0, 1.0]])))
    assert loss == (4 + 9) / 4


class Players:
    """Generates 2, 3 and so on; the score of an image is its only value."""

    latent_size, discriminator = 1, staticmethod(lambda images: images)
    noise = __call__ = staticmethod(lambda like: torch.arange(2.0, 2.0 + len(like)).unsqueeze(1))


def test_the_losses_of_a_gan_are_those_of_its_paper():
    batch = (torch.tensor([[0.0], [1.0]]), None)
    of_discriminator, of_generator = (turn.loss(Players(), batch).item() for turn in GAN().turns)
    surprise = lambda score: math.log1p(math.exp(-score))  # noqa: E731  that an image of this score is real
    assert of_discriminator == pytest.approx((surprise(0) + surprise(1) + surprise(-2) + surprise(-3)) / 2)
    assert of_generator == pytest.approx((surprise(2) + surprise(3)) / 2)
    values, num_images = GAN().evaluate(Players(), batch)
    assert (values["loss"].item(), num_images) == (2 * 2 - 0.5 - 0.5, 2), "the energy distance"


def test_wrong_settings_and_shapes_are_refused():
    with pytest.raises(ValueError, match='targets must be "targets" or "inputs", got \'labels\''):
        ModelLoss(targets="labels")
    with pytest.raises(ValueError, match="target_argument must be named when input_argument is"):
        ModelLoss(input_argument="input_ids")
    with pytest.raises(ValueError, match=r"outputs have shape \(2, 1\), the targets \(2,\)"):
        Regression().loss(fixed([[1.0], [2.0]]), (NOTHING, torch.zeros(2)))


BATCH, LAYER = (torch.randn(4, 3), torch.randn(4, 2)), nn.Linear(3, 2)


def self_taught(wrap):
    """A linear model that returns its loss wrapped by `wrap`."""
    return lambda inputs, targets: wrap(F.mse_loss(LAYER(inputs), targets))


def test_the_loss_is_found_where_models_put_it():
    for wrap in (
        lambda loss: loss,
        lambda loss: (loss, "logits"),
        lambda loss: [loss],
        lambda loss: {"logits": None, "loss": loss},
        lambda loss: SimpleNamespace(loss=loss),
    ):
        loss = ModelLoss().loss(self_taught(wrap), BATCH)
        assert torch.equal(loss, F.mse_loss(LAYER(BATCH[0]), BATCH[1]))
        assert loss.requires_grad


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
            ModelLoss().loss(self_taught(wrap), BATCH)


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


def test_a_task_computes_the_same_from_a_named_output():
    bare = nn.Linear(5, 3)
    wrapped = lambda inputs: {"hidden": inputs, "logits": bare(inputs)}  # noqa: E731
    for task, batch in (
        (Classification, (torch.randn(4, 5), torch.randint(3, (4,)))),
        (Regression, (torch.randn(4, 5), torch.randn(4, 3))),
        (LanguageModeling, (torch.randn(4, 2, 5), torch.randint(3, (4, 2)))),
    ):
        plain, named = task(), task(output="logits")
        assert torch.equal(named.loss(wrapped, batch), plain.loss(bare, batch))
        assert named.evaluate(wrapped, batch) == plain.evaluate(bare, batch)
