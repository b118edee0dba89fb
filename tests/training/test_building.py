"""Everything a training is made of, from its config."""

from dataclasses import asdict, replace

import pytest
import torch
from assembled import CPU, MLP, composed
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import AdamWConfig, SGDConfig
from ampsweep.data.base import for_rank
from ampsweep.observe.memory_limit import is_out_of_memory
from ampsweep.precision import Precision
from ampsweep.text import one_line
from ampsweep.training.components.built import build, build_data, build_model, steps_of
from ampsweep.training.components.device import resolve_device
from ampsweep.training.components.instantiate import build_component, locate
from ampsweep.training.components.optimizer import build_optimizers, is_fused

ADAMW, SGD = AdamWConfig(name="adamw", lr=1e-3), SGDConfig(name="sgd", lr=1e-3)
ONE, FP32 = {"optimizer": ["*"]}, Precision("fp32", "cpu")

SIZES = {"in_features": 2, "out_features": 3}


def built(*overrides, seed=0, mode="fp32"):
    config = replace(composed(*overrides), seed=seed, precision=PRECISION_MODES[mode])
    return build(config, CPU, build_data(config, CPU))


def weights(parts):
    return [parameter.detach() for parameter in parts.model.parameters()]


def batches(parts):
    return [tensor for index in range(3) for tensor in parts.data.train_batch(index)]


@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16", "pure_bf16", "pure_fp16"])
def test_a_seed_gives_every_arm_the_same_weights_and_batches(mode):
    baseline, arm = built(*MLP, seed=3), built(*MLP, seed=3, mode=mode)
    for one, other in zip(weights(baseline), weights(arm), strict=True):
        assert torch.equal(one.to(other.dtype), other)
    assert all(map(torch.equal, batches(baseline), batches(arm)))


def test_what_was_drawn_before_does_not_matter():
    one = built(*MLP, seed=3)
    torch.rand(7)
    assert all(map(torch.equal, weights(one), weights(built(*MLP, seed=3))))


def test_a_length_in_epochs_becomes_steps_of_effective_batches():
    config, data = composed(*MLP), build_data(composed(*MLP), CPU)
    assert data.num_train_batches == 1438 / 16
    in_epochs = replace(config.trainer, steps=None, epochs=8, grad_accum_steps=3)
    assert steps_of(replace(config, trainer=in_epochs), data) == 8 * 1438 // (16 * 3) == 239
    too_many = replace(config.trainer, steps=None, epochs=2, grad_accum_steps=200)
    with pytest.raises(UserError, match=r"^trainer\.epochs=2: 89\.875 batches an epoch make no step of .*=200 b"):
        steps_of(replace(config, trainer=too_many), data)


@pytest.mark.parametrize(("batch_size", "world_size", "grad_accum_steps"), [(8, 2, 1), (4, 2, 2), (2, 8, 1), (4, 1, 4)])
def test_an_epoch_is_as_many_steps_however_they_are_shared(batch_size, world_size, grad_accum_steps):
    config = composed(*MLP, f"data.batch_size={batch_size}")
    trainer = replace(config.trainer, steps=None, epochs=7, grad_accum_steps=grad_accum_steps)
    data = for_rank(build_data(config, CPU), 0, world_size)
    assert steps_of(replace(config, trainer=trainer), data) == 7 * 1438 // 16


def test_epochs_replace_steps_where_both_are_set():
    config = composed(*MLP)
    config = replace(config, trainer=replace(config.trainer, steps=5, epochs=1))
    assert steps_of(config, build_data(config, CPU)) == 89


def test_endless_data_has_no_epochs():
    class Endless:
        num_train_batches = None

    config = composed(*MLP)
    with pytest.raises(UserError, match=r"^trainer\.epochs=1: data=digits has no epochs; use trainer\.steps$"):
        steps_of(replace(config, trainer=replace(config.trainer, epochs=1)), Endless())


def with_options(**options):
    config = composed(*MLP)
    return replace(config, trainer=replace(config.trainer, **options))


class Noting(nn.Linear):
    """Remembers what it was told."""

    def __init__(self):
        super().__init__(2, 2)
        self.told = []

    def gradient_checkpointing_enable(self):
        self.told.append("checkpoint")

    def compile(self):
        self.told.append("compile")


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_options_of_the_trainer_reach_the_model(checkpoint, compiled):
    config = with_options(activation_checkpointing=checkpoint, compile=compiled)
    config = replace(config, model={"_target_": f"{__name__}.Noting"})
    model = build(config, CPU, build_data(config, CPU)).model
    assert model.told == ["checkpoint"] * checkpoint + ["compile"] * compiled


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of what torch imports to compile
@pytest.mark.parametrize(("key", "inside"), [("null", True), ("false", False), ("true", True)])
def test_cudnn_tries_its_algorithms_where_that_is_asked_for(key, inside, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    config = composed(*MLP, f"trainer.cudnn_benchmark={key}")
    with build(config, CPU, build_data(config, CPU)).precision.flags():
        assert torch.backends.cudnn.benchmark is inside
    assert torch.backends.cudnn.benchmark is True


def test_where_a_task_calls_several_models_each_is_compiled():
    config = composed("model=gan_digits", "trainer.compile=true")
    model = build(config, CPU, build_data(config, CPU)).model
    # Both are torch's own Sequential, which torch.compile passes over where it is called first.
    is_compiled = ["forward" in vars(part) for part in (model, model.generator, model.discriminator)]
    assert is_compiled == [False, True, True]


def test_images_are_convolved_in_the_layout_that_is_asked_for():
    config = with_options(channels_last=True)
    convolution = {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": 2}
    weight = build_model(replace(config, model=convolution)).weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_model_that_cannot_be_checkpointed_is_named():
    config = replace(with_options(activation_checkpointing=True), model={"_target_": "torch.nn.Flatten"})
    with pytest.raises(UserError, match=r"activation_checkpointing=true: Flatten has no gradient_checkpointing_enable"):
        build_model(config)


class Renamed(Noting):
    """Has the newer name of the method as well, as Hugging Face's models do, which warn of the older one."""

    def gradient_checkpointing_enable(self):
        raise FutureWarning

    def activation_checkpointing_enable(self):
        super().gradient_checkpointing_enable()


class Refusing(nn.Linear):
    def gradient_checkpointing_enable(self):
        raise ValueError("Refusing does not support activation checkpointing.")


def test_the_newer_name_of_the_method_is_preferred():
    config = replace(with_options(activation_checkpointing=True), model={"_target_": f"{__name__}.Renamed"})
    assert build_model(config).told == ["checkpoint"]


def test_a_model_that_refuses_to_be_checkpointed_says_why():
    target = {"_target_": f"{__name__}.Refusing", "in_features": 2, "out_features": 2}
    config = replace(with_options(activation_checkpointing=True), model=target)
    with pytest.raises(UserError, match=r"^trainer\.activation_checkpointing=true: Refusing does not support"):
        build_model(config)


def test_something_that_is_no_model_or_no_data_is_named():
    other = {"_target_": "builtins.dict", "batch_size": 1}
    with pytest.raises(UserError, match=r"^model\._target_=builtins\.dict gave a dict, not a torch\.nn\.Module$"):
        build_model(replace(composed(*MLP), model=other))
    with pytest.raises(
        UserError, match=r"^data\._target_=builtins\.dict gave a dict without batch_size, num_train_batches, "
    ):
        build_data(replace(composed(*MLP), data=other), CPU)


@pytest.mark.parametrize(("fused", "found"), [(None, True), (True, True), (False, False)])
@pytest.mark.parametrize("config", [ADAMW, SGD])
def test_optimizers_are_fused_where_the_device_has_it(config, fused, found):
    optimizer = build_optimizers(asdict(replace(config, fused=fused)), nn.Linear(2, 2), ONE, FP32)["optimizer"]
    assert is_fused(optimizer) == found


def test_every_hyperparameter_reaches_the_optimizer():
    config = AdamWConfig(name="adamw", lr=0.1, weight_decay=0.2, beta1=0.3, beta2=0.4, eps=0.5)
    defaults = build_optimizers(asdict(config), nn.Linear(2, 2), ONE, FP32)["optimizer"].defaults
    assert [defaults[key] for key in ("lr", "weight_decay", "betas", "eps")] == [0.1, 0.2, (0.3, 0.4), 0.5]
    config = SGDConfig(name="sgd", lr=0.1, weight_decay=0.2, momentum=0.3, nesterov=True)
    defaults = build_optimizers(asdict(config), nn.Linear(2, 2), ONE, FP32)["optimizer"].defaults
    assert [defaults[key] for key in ("lr", "weight_decay", "momentum", "nesterov")] == [0.1, 0.2, 0.3, True]


def test_only_what_needs_a_gradient_is_trained():
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    (group,) = build_optimizers(asdict(ADAMW), model, ONE, FP32)["optimizer"].param_groups
    assert list(map(id, group["params"])) == list(map(id, model[1].parameters()))


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_what_cannot_be_optimized_is_refused(model):
    with pytest.raises(UserError, match=r"^the model has no parameters to train$"):
        build_optimizers(asdict(SGD), model, ONE, FP32)


def test_the_device_is_torchs_accelerator_else_the_cpu():
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    expected = CPU if accelerator is None else torch.device(accelerator.type, 0)
    assert resolve_device("auto") == expected
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_devices_gpu_is_the_one_torch_asks(name, index, monkeypatch):
    current = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr("ampsweep.training.components.device.device_name", lambda device: "a GPU")
    assert resolve_device(name) == torch.device("cuda", index)
    assert current == [index]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("tpu", "device=tpu: torch knows no such device"), ("meta", "device=meta: this machine has ")],
)
def test_a_device_that_is_not_here_is_refused(name, sentence):
    with pytest.raises(UserError) as refused:
        resolve_device(name)
    assert str(refused.value).startswith(sentence)


def test_a_component_is_called_with_its_own_keys():
    model = build_component(
        "model",
        {"_target_": "torch.nn.Sequential", "name": "mine", "_args_": [{"_target_": "torch.nn.Linear"} | SIZES]},
    )
    assert (model[0].in_features, model[0].out_features) == (2, 3)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nosuch.Net", "does not import: ModuleNotFoundError: No module named 'nosuch'"),
        ("torch.nn.Nosuch", "does not import: AttributeError"),
        ("torch.nn.functional", "is a module, not a class or function"),
        ("not an import", "does not import: "),
    ],
)
def test_a_target_that_does_not_import_is_named(target, said):
    with pytest.raises(UserError, match=f"^model\\._target_={target} {said}"):
        locate("model", {"_target_": target})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"in_features": 2}, "model=mine: TypeError: .*missing 1 required positional argument: 'out_features'$"),
        (SIZES | {"in_features": -1}, "model=mine: RuntimeError: "),
        (SIZES | {"width": 2}, "model=mine: TypeError: .*unexpected keyword argument 'width'"),
    ],
)
def test_what_a_constructor_raises_is_one_line(arguments, sentence):
    with pytest.raises(UserError, match=f"^{sentence}") as refused:
        build_component("model", {"_target_": "torch.nn.Linear", "name": "mine"} | arguments)
    assert "\n" not in str(refused.value)


def test_a_lack_of_memory_while_building_is_no_error_of_the_user():
    huge = {"_target_": "torch.nn.Linear", "in_features": 2**31, "out_features": 2**29}
    with pytest.raises(RuntimeError) as raised:
        build_component("model", huge)
    assert is_out_of_memory(raised.value)


def test_a_sentence_is_quoted_and_other_errors_named_by_type():
    assert one_line(ValueError("width must be\n positive")) == "width must be positive"
    assert one_line(KeyError("width")) == "KeyError: 'width'"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 1000))) == 300


def test_a_layer_without_sizes_is_refused_by_name():
    lazy = composed("model=custom", "model._target_=torch.nn.LazyLinear", "+model.out_features=10", "data=digits")
    with pytest.raises(UserError, match=r"^model=LazyLinear has a LazyLinear, whose sizes are not known before"):
        build_model(lazy)


def test_complex_parameters_are_not_fused():
    layer = nn.Linear(2, 3, dtype=torch.complex64)
    (optimizer,) = build_optimizers(asdict(ADAMW), layer, ONE, FP32).values()
    layer(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
    optimizer.step()
    assert not is_fused(optimizer)
    with pytest.raises(UserError, match=r"^optimizer\.fused=true: torch fuses no step of complex weight$"):
        build_optimizers(asdict(ADAMW) | {"fused": True}, layer, ONE, FP32)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_chosen_step_changes_every_parameter(name, dtype):
    """torch 2.13's fused SGD on a CPU leaves full vectors of half-precision parameters as they are."""
    model = torch.nn.Linear(40, 7).to(dtype)
    settings = composed(f"optimizer={name}", "optimizer.lr=1").optimizer
    (optimizer,) = build_optimizers(settings, model, ONE, FP32).values()
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all((one != other).all() for one, other in zip(model.parameters(), before, strict=True))


def test_a_fused_step_that_does_nothing_is_refused():
    model = torch.nn.Linear(40, 7).bfloat16()
    with pytest.raises(UserError, match="leaves parameters in bfloat16 as they are"):
        build_optimizers(asdict(replace(SGD, fused=True)), model, ONE, FP32)
