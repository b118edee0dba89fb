"""Building the parts of a training from its config."""

from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from assembled import CPU, MLP, composed
from torch import nn

from ampsweep.config.components import AdamWConfig, SGDConfig
from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.data.base import for_rank
from ampsweep.observe.memory_limit import is_out_of_memory
from ampsweep.precision import Precision
from ampsweep.text import one_line
from ampsweep.training.components.built import build, build_data, build_model, steps_of
from ampsweep.training.components.instantiate import build_component
from ampsweep.training.components.optimizer import build_optimizers

ADAMW, SGD = asdict(AdamWConfig(name="adamw", lr=1e-3)), asdict(SGDConfig(name="sgd", lr=1e-3))


def optimizer_of(config, model=None):
    return build_optimizers(config, model or nn.Linear(2, 2), {"optimizer": ["*"]}, Precision("fp32", CPU))["optimizer"]


def built(config):
    return build(config, CPU, build_data(config, CPU))


def with_trainer(model=None, **options):
    config = composed(*MLP)
    return replace(config, model=model or config.model, trainer=replace(config.trainer, **options))


@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16", "pure_bf16", "pure_fp16"])
def test_a_seed_gives_every_arm_the_same_weights_and_batches(mode):
    arms = []
    for name in ("fp32", mode):
        torch.rand(7)  # the state of the generators before does not matter
        arms.append(built(replace(composed(*MLP), seed=3, precision=PRECISION_MODES[name])))
    for weight, other in zip(*(parts.model.parameters() for parts in arms), strict=True):
        assert torch.equal(weight.to(other.dtype), other)
    for index in range(3):
        assert all(map(torch.equal, *(parts.data.train_batch(index) for parts in arms)))


def test_a_length_in_epochs_becomes_steps_of_effective_batches():
    data = build_data(composed(*MLP), CPU)
    assert data.num_train_batches == 1438 / 16
    in_epochs = with_trainer(steps=None, epochs=8, grad_accum_steps=3)
    assert steps_of(in_epochs, data) == 8 * 1438 // (16 * 3) == 239
    assert steps_of(in_epochs, data, 2) == 8 * 1438 // (16 * 3 * 2)
    assert steps_of(with_trainer(steps=5, epochs=1), data) == 89, "epochs take precedence"
    for batch_size, world_size, grad_accum_steps in ((8, 2, 1), (4, 2, 2), (2, 8, 1), (4, 1, 4)):
        shared = for_rank(build_data(composed(*MLP, f"data.batch_size={batch_size}"), CPU), 0, world_size)
        config = with_trainer(steps=None, epochs=7, grad_accum_steps=grad_accum_steps)
        assert steps_of(config, shared) == 7 * 1438 // 16, "however an epoch is shared"
    with pytest.raises(UserError, match=r"^trainer\.epochs=2: 89\.875 batches an epoch make no step of .*=200 b"):
        steps_of(with_trainer(steps=None, epochs=2, grad_accum_steps=200), data)
    with pytest.raises(UserError, match=r"^trainer\.epochs=1: data=digits has no epochs; use trainer\.steps$"):
        steps_of(with_trainer(epochs=1), type("Endless", (), {"num_train_batches": None}))


class Noting(nn.Linear):
    """Remembers the calls of its methods; one that `refuses` recomputes no activations, or by the newer name alone."""

    def __init__(self, *, refuses=False, has_newer=False):
        super().__init__(2, 2)
        self.calls, self.refuses = [], refuses
        if has_newer:  # as Hugging Face's models do, which warn of the older one
            self.activation_checkpointing_enable = partial(self.calls.append, "checkpoint")

    def gradient_checkpointing_enable(self):
        if self.refuses:
            raise ValueError("it does not support it")
        self.calls.append("checkpoint")

    def compile(self):
        self.calls.append("compile")


NOTING = {"_target_": f"{__name__}.Noting"}


def test_options_of_the_trainer_reach_the_model():
    renamed = NOTING | {"refuses": True, "has_newer": True}
    for checkpoint, compiled, model in ((True, True, NOTING), (False, False, NOTING), (True, False, renamed)):
        config = with_trainer(model, activation_checkpointing=checkpoint, compile=compiled)
        assert built(config).model.calls == ["checkpoint"] * checkpoint + ["compile"] * compiled
    for model, sentence in (
        ({"_target_": "torch.nn.Flatten"}, "Flatten has no gradient_checkpointing_enable"),
        (NOTING | {"refuses": True}, "it does not support it$"),
    ):
        with pytest.raises(UserError, match=rf"^trainer\.activation_checkpointing=true: {sentence}"):
            build_model(with_trainer(model, activation_checkpointing=True))


def test_cudnn_tries_its_algorithms_if_asked_to(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for value, inside in ((None, True), (False, False), (True, True)):
        with built(with_trainer(cudnn_benchmark=value)).precision.flags():
            assert torch.backends.cudnn.benchmark is inside
        assert torch.backends.cudnn.benchmark is True


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of what torch imports to compile
def test_models_are_compiled_each_and_laid_out_as_asked():
    compiled = built(composed("model=gan_digits", "trainer.compile=true"))
    model = compiled.model
    assert all(hasattr(turn.loss, "_torchdynamo_orig_callable") for turn in compiled.turns), "each with its model"
    # Both are torch's own Sequential, which torch.compile passes over where it is called first.
    is_compiled = ["forward" in vars(module) for module in (model, model.generator, model.discriminator)]
    assert is_compiled == [False, True, True]
    convolution = {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": 2}
    weight = build_model(with_trainer(convolution, channels_last=True)).weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_objects_that_are_no_model_or_no_data_are_refused():
    other, config = {"_target_": "builtins.dict", "batch_size": 1}, composed(*MLP)
    with pytest.raises(UserError, match=r"^model\._target_=builtins\.dict gave a dict, not a torch\.nn\.Module$"):
        build_model(replace(config, model=other))
    sentence = r"^data\._target_=builtins\.dict gave a dict without batch_size, num_train_batches, "
    with pytest.raises(UserError, match=sentence):
        build_data(replace(config, data=other), CPU)
    with pytest.raises(UserError, match=r"^model=LazyLinear has a LazyLinear, whose sizes are not known before"):
        build_model(replace(config, model={"_target_": "torch.nn.LazyLinear", "out_features": 10}))


def test_every_hyperparameter_reaches_the_optimizer():
    config = AdamWConfig(name="adamw", lr=0.1, weight_decay=0.2, beta1=0.3, beta2=0.4, eps=0.5)
    expected = {"lr": 0.1, "weight_decay": 0.2, "betas": (0.3, 0.4), "eps": 0.5}
    assert expected.items() <= optimizer_of(asdict(config)).defaults.items()
    expected = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.3, "nesterov": True}
    assert expected.items() <= optimizer_of(SGD | expected).defaults.items()


def test_only_parameters_that_need_a_gradient_are_trained():
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    (group,) = optimizer_of(ADAMW, model).param_groups
    assert list(map(id, group["params"])) == list(map(id, model[1].parameters()))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_chosen_step_changes_every_parameter(name, dtype):
    """torch 2.13's fused SGD on a CPU leaves full vectors of half-precision parameters as they are."""
    model = nn.Linear(40, 7).to(dtype)
    optimizer = optimizer_of(composed(f"optimizer={name}", "optimizer.lr=1").optimizer, model)
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all((new != old).all() for new, old in zip(model.parameters(), before, strict=True))
    if (name, dtype) == ("sgd", torch.bfloat16):
        with pytest.raises(UserError, match="leaves parameters in bfloat16 as they are"):
            optimizer_of(SGD | {"fused": True}, model)


def test_errors_of_a_component_are_one_line():
    linear = {"_target_": "torch.nn.Linear", "name": "mine", "in_features": 2, "out_features": 3}
    for changes, sentence in (
        ({"_target_": "no.Net"}, r"\._target_=no.Net does not import: ModuleNotFoundError: No module named 'no'"),
        ({"_target_": "torch.nn.functional"}, r"\._target_=torch.nn.functional is a module, not a class or function"),
        ({"_target_": "not an import"}, r"\._target_=not an import does not import: "),
        ({"in_features": -1}, "=mine: RuntimeError: "),
        ({"width": 2}, "=mine: TypeError: .*unexpected keyword argument 'width'"),
    ):
        with pytest.raises(UserError, match=f"^model{sentence}") as refused:
            build_component("model", linear | changes)
        assert "\n" not in str(refused.value)
    with pytest.raises(RuntimeError) as raised:
        build_component("model", linear | {"in_features": 2**31, "out_features": 2**29})
    assert is_out_of_memory(raised.value), "which is no error of the user"
    del linear["name"]
    model = build_component("model", {"_target_": "torch.nn.Sequential", "name": "mine", "_args_": [linear]})
    assert (model[0].in_features, model[0].out_features) == (2, 3)


def test_a_sentence_is_quoted_and_other_errors_named_by_type():
    assert one_line(ValueError("width must be\n positive")) == "width must be positive"
    assert one_line(KeyError("width")) == "KeyError: 'width'"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 1000))) == 300
