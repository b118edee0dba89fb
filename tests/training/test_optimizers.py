"""Any optimizer trains, is grouped, saved and resumed as the built-in ones, or is refused in a sentence."""

import re

import pytest
import torch
from assembled import CPU, MLP, StopAfter, assemble, assert_resumes_bitwise, own, resumed, trained
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.training.components.optimizer import (
    build_optimizers,
    has_fused_kernels,
    is_fused,
    learning_rate,
    rehearse_optimizers,
)

TORCHS = ("Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adadelta", "Adamax", "ASGD", "Rprop")
OWN = ("Lion", "Decaying", "Scaling", "WithoutRate", "adam_of")
TRAINS, TWO = {"optimizer": ["*"]}, {"generator": ["0.*"], "critic": ["1.*"]}


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def half_frozen():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model[1].bias.requires_grad_(False)
    return model


def of_complex_numbers():
    return nn.Linear(2, 3, dtype=torch.complex64)


class Asking(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "a closure is required"


class Sam(Asking):
    """As the SAM of many repositories."""

    def first_step(self):
        """Climb."""

    def second_step(self):
        """Step from where the climb began."""


def built(target="torch.optim.Adam", model=None, trains=TRAINS, device=None, **settings):
    config = {"_target_": target, "name": "custom", "lr": None, **settings}
    return build_optimizers(config, model or net(), trains, Precision("fp32", "cpu"), device=device)


def single(target="torch.optim.Adam", **settings):
    return built(target, **settings)["optimizer"]


def chosen(target, **settings):
    given = (f"{'' if key == 'lr' else '+'}optimizer.{key}={value}" for key, value in settings.items())
    return ("optimizer=custom", f"optimizer._target_={target}", *given)


@pytest.mark.parametrize(
    "target",
    [
        *(f"torch.optim.{name}" for name in TORCHS[:6]),
        *(pytest.param(f"torch.optim.{name}", marks=pytest.mark.nightly) for name in TORCHS[6:]),
        *(f"own_optimizers.{name}" for name in OWN),
    ],
)
def test_every_optimizer_resumes_bitwise(target, tmp_path):
    rate = "scheduler=constant" if target.endswith("WithoutRate") else "scheduler=cosine"
    mode = ("precision=fp32",) if target.endswith("Lion") else ("precision=amp_fp16", "precision.init_scale=1048576")
    training = assert_resumes_bitwise(tmp_path, *MLP, *chosen(target), rate, *mode, "trainer.steps=9")
    initial = assemble(*MLP).parameters()
    assert not any(map(torch.equal, training.parameters(), initial))


def test_a_class_by_its_name_is_the_option_of_that_name():
    settings = ("optimizer.lr=0.01", "trainer.steps=4", "precision=amp_fp16")
    option = trained(*MLP, "optimizer=adam", "optimizer.beta2=0.99", *settings)
    by_name = trained(*MLP, *chosen("torch.optim.Adam", betas="[0.9,0.99]"), *settings)
    assert all(map(torch.equal, option.parameters(), by_name.parameters()))
    assert single(beta2=0.5).defaults["betas"] == (0.9, 0.5)
    assert single(beta1=0.5, groups=[{"match": ["*.bias"], "beta2": 0.4}]).param_groups[1]["betas"] == (0.5, 0.4)
    optimizers = single(), single(lr=0.25), single("own_optimizers.WithoutRate"), single("own_optimizers.adam_of")
    assert [*map(learning_rate, optimizers)] == [1e-3, 0.25, None, 1e-3]


def test_the_first_group_that_matches_takes_a_parameter():
    model = net()
    groups = [{"match": ["1.*"], "lr": 0.5}, {"match": ["*.bias", "1.weight"], "weight_decay": 0.25}]
    rest, norm, biases = single("torch.optim.SGD", model=model, lr=0.1, groups=groups).param_groups
    assert rest["params"] == [model[0].weight, model[2].weight]
    assert norm["params"] == [model[1].weight, model[1].bias]
    assert biases["params"] == [model[0].bias, model[2].bias]
    assert [(group["lr"], group["weight_decay"]) for group in (rest, norm, biases)] == [(0.1, 0), (0.5, 0), (0.1, 0.25)]
    groups = single(groups=[{"match": ["*.bias"], "lr": 0.5}, {"match": ["*"], "lr": 0.25}]).param_groups
    assert [group["lr"] for group in groups] == [0.5, 0.25], "no group is left for the rest"


def test_each_of_several_optimizers_can_differ():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    each = {"critic": {"_target_": "torch.optim.SGD", "momentum": 0.9}}
    generator, critic = built(model=model, trains=TWO, lr=0.5, beta1=0.25, each=each).values()
    assert (type(generator), generator.defaults["betas"]) == (torch.optim.Adam, (0.25, 0.999))
    assert (type(critic), critic.defaults["lr"], critic.defaults["momentum"]) == (torch.optim.SGD, 0.5, 0.9)
    assert critic.param_groups[0]["params"] == [*model[1].parameters()]
    muon, _ = built("torch.optim.Muon", model=model, trains=TWO, each=each).values()
    assert type(muon) is torch.optim.Muon
    model[1].requires_grad_(False)
    assert [*built(model=model, trains={"generator": ["0.*"]})] == ["generator"], "a frozen parameter needs none"


SPARSE = nn.Embedding(5, 3, sparse=True)
GROUP = {"match": ["*.bias"], "lr": 0.5}
GROUPS_OF_SGD = "a group can have; allowed are dampening, lr, max_grad_norm, maximize, momentum, nesterov, weight_decay"
REFUSED = {
    "no optimizer trains 1.weight; the task has generator for 0.*, and ": {"trains": {"generator": ["0.*"]}},
    "0.weight is trained by two optimizers, one and two": {"trains": {"one": ["*"], "two": ["0.*"]}},
    "the optimizer two trains no parameter: none matches 9.*": {"trains": {"one": ["*"], "two": ["9.*"]}},
    "optimizer.each.crtic: there is no such optimizer; the task has optimizer": {"each": {"crtic": {"lr": 0.5}}},
    "optimizer.groups[0].match: no parameter to train is called *.biass": {"groups": [GROUP | {"match": ["*.biass"]}]},
    "optimizer.groups[1]: the groups before it take all parameters that it matches": {"groups": [GROUP, GROUP]},
    f"optimizer.groups: SGD has no hyperparameter fused that {GROUPS_OF_SGD}": {"groups": [GROUP | {"fused": False}]},
    "optimizer=SGD: TypeError: SGD.__init__() got an unexpected keyword argument 'momntum'": {"momntum": 0.9},
    "optimizer.capturable=true: SGD has no such argument": {"capturable": True},
    "optimizer.fused=true: torch has no fused SGD on xla": {"fused": True, "device": torch.device("xla")},
    "optimizer.fused=true: Lion has no such argument": {"target": "own_optimizers.Lion", "fused": True},
    "optimizer=LBFGS: its step needs a closure that computes the loss again": {"target": "torch.optim.LBFGS"},
    "optimizer=Sam: it takes two steps with the loss at two places (SAM); let the task": {"target": f"{__name__}.Sam"},
    "optimizer=Asking: its step needs a closure that computes the loss again": {"target": f"{__name__}.Asking"},
    "optimizer=Muon: Muon only supports 2D parameters whereas we found": {"target": "torch.optim.Muon"},
    "optimizer._target_=own_optimizers.counted gave a int, not a torch Optimizer": {"target": "own_optimizers.counted"},
    "optimizer=forgetful does not train 0.bias, which it was given": {"target": "own_optimizers.forgetful"},
    "optimizer=SparseAdam cannot take a step: RuntimeError: SparseAdam does": {"target": "torch.optim.SparseAdam"},
    "the model has no parameters to train": {"model": lambda: net().requires_grad_(False)},
    "optimizer.fused=true: torch fuses no step of complex weight": {"fused": True, "model": of_complex_numbers},
    "0 is an embedding with sparse=True; gradients here are dense": {"model": lambda: nn.Sequential(SPARSE)},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_settings_that_cannot_train_are_refused_before(sentence):
    def rehearse(target="torch.optim.SGD", trains=TRAINS, device=CPU, model=net, **settings):
        config = {"_target_": target, "name": "custom", **settings}
        with torch.device("meta"):
            built = model()
        rehearse_optimizers(config, built, trains, device=device, precision=PRECISION_MODES["fp32"])

    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        rehearse(**REFUSED[sentence])


def test_a_parameter_unfrozen_after_the_build_is_named():
    training = assemble(*own(__name__, "half_frozen"), "trainer.log_every=3", "trainer.steps=9")
    training.built.model[1].bias.requires_grad_()
    with pytest.raises(ValueError, match=r"^1\.bias was frozen when .* built and is not frozen at step 3: no optimiz"):
        training.train()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_torchs_optimizers_are_fused_where_torch_has_the_kernels(name):
    skips_itself = name != "Adagrad" or INSTALLED_TORCH >= (2, 12)  # 2.11's leaves it to the scaler
    for device in (CPU, torch.device("cuda")):
        optimizer = single(f"torch.optim.{name}", device=device)
        assert optimizer.defaults["fused"] is has_fused_kernels(type(optimizer), device.type) is True
        assert is_fused(optimizer) == skips_itself
    assert not is_fused(built(f"torch.optim.{name}", of_complex_numbers())["optimizer"])
    assert not any(is_fused(single(f"torch.optim.{name}", **other)) for other in ({"fused": False}, {"foreach": True}))


def test_an_optimizer_without_a_rate_logs_none():
    training = trained(*MLP, *chosen("own_optimizers.WithoutRate"), "trainer.steps=2")
    assert training.column("train/lr") == {}
    sentence = r"^scheduler=cosine: WithoutRate has no learning rate to set; give optimizer\.lr,"
    with pytest.raises(UserError, match=sentence):
        assemble(*MLP, *chosen("own_optimizers.WithoutRate"), "scheduler=cosine")


def test_state_is_loaded_and_hyperparameters_are_the_runs_own(tmp_path):
    steps = (*MLP, "trainer.steps=8")
    assemble(*steps, *chosen("own_optimizers.Decaying", lr=0.5), directory=tmp_path).train(StopAfter(3))
    rest, notes = resumed(tmp_path, *steps, *chosen("own_optimizers.Decaying", lr=0.25, power=0.5))
    assert notes == []
    (group,) = rest.optimizer.param_groups
    assert (group["lr"], group["power"], group["taken"]) == (0.25, 0.5, 3), "a class may keep state in its groups"
    rest, notes = resumed(tmp_path, *MLP, "optimizer=adam", "trainer.steps=4")
    assert notes == ["the checkpoint's own_optimizers.Decaying state is ignored; Adam starts fresh"]
    assert rest.optimizer.state == {}
    assert rest.train().status == "completed"


def test_the_state_follows_its_parameter_into_other_groups(tmp_path):
    overrides = (*MLP, "optimizer=adam", "trainer.steps=6")
    assemble(*overrides, directory=tmp_path).train(StopAfter(3))
    groups = ("optimizer.groups=[{match:[*.bias],weight_decay:0.0}]",)
    (plain, _), (grouped, notes) = (resumed(tmp_path, *overrides, *more) for more in ((), groups))
    plain.train()
    grouped.train()
    assert notes == []
    assert all(map(torch.equal, plain.parameters(), grouped.parameters()))
