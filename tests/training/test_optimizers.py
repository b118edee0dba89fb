"""Any optimizer trains, is grouped, saved and resumed as the built-in ones; what cannot be is refused in a sentence."""

from itertools import pairwise

import own_optimizers
import pytest
import torch
from assembled import MLP, StopAfter, assemble, resumed
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.training.components.fused_kernels import has_fused_kernels
from ampsweep.training.components.optimizer import build_optimizers, is_fused, learning_rate, rehearse_optimizers

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OF_TORCH = ("Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adadelta", "Adamax", "ASGD", "Rprop")
OWN = ("Lion", "Decaying", "Scaling", "WithoutRate", "adam_of")
EVERY = (*(f"torch.optim.{name}" for name in OF_TORCH), *(f"own_optimizers.{name}" for name in OWN))
ONE = {"optimizer": ["*"]}
BIGRAMS = (
    *("model=custom", f"model._target_={__name__}.bigrams", "optimizer=sgd"),
    *("data=synthetic_tokens", "data.vocab_size=17", "data.seq_len=8", "data.batch_size=4"),
)
TWO = {"generator": ["0.*"], "critic": ["1.*"]}


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def bigrams(frozen=False):
    model = nn.Sequential(nn.Embedding(17, 8), nn.Linear(8, 17))
    model[1].bias.requires_grad_(not frozen)
    return model


def built(target="torch.optim.Adam", model=None, trains=ONE, device=None, **settings):
    config = {"_target_": target, "name": "custom", "lr": None, **settings}
    return build_optimizers(config, model or net(), trains, Precision("fp32", "cpu"), device=device)


def one(target="torch.optim.Adam", **settings):
    return built(target, **settings)["optimizer"]


def chosen(target, **settings):
    given = (f"{'' if key == 'lr' else '+'}optimizer.{key}={value}" for key, value in settings.items())
    return ("optimizer=custom", f"optimizer._target_={target}", *given)


@pytest.mark.parametrize(
    ("target", "mode"), [*((target, "amp_fp16") for target in EVERY), ("own_optimizers.Lion", "fp32")]
)
def test_every_optimizer_goes_on_bitwise_where_it_was(target, mode, tmp_path):
    rate = ("scheduler=constant",) if target.endswith("WithoutRate") else ("scheduler=cosine",)
    overrides = (*MLP, *chosen(target), *rate, f"precision={mode}", "trainer.steps=9", "precision.init_scale=1048576")

    whole = assemble(*overrides)
    before = whole.parameters()
    assert whole.train().status == "completed"
    assemble(*overrides, directory=tmp_path).train(StopAfter(5))
    rest, notes = resumed(tmp_path, *overrides)
    assert rest.train().status == "completed"

    assert notes == []
    assert all(map(torch.equal, whole.parameters(), rest.parameters()))
    assert not any(map(torch.equal, whole.parameters(), before))


def test_a_class_by_its_name_is_the_option_of_that_name():
    settings = ("optimizer.lr=0.01", "trainer.steps=4", "precision=amp_fp16")
    option = assemble(*MLP, "optimizer=adam", "optimizer.beta2=0.99", *settings)
    by_name = assemble(*MLP, *chosen("torch.optim.Adam", betas="[0.9,0.99]"), *settings)
    option.train()
    by_name.train()
    assert all(map(torch.equal, option.parameters(), by_name.parameters()))


def test_one_beta_can_be_given_where_a_class_takes_two():
    assert one(beta2=0.5).defaults["betas"] == (0.9, 0.5)
    assert one(beta1=0.5, groups=[{"match": ["*.bias"], "beta2": 0.4}]).param_groups[1]["betas"] == (0.5, 0.4)


def test_a_learning_rate_is_that_given_or_the_classs_own():
    assert learning_rate(one()) == 1e-3
    assert learning_rate(one(lr=0.25)) == 0.25
    assert learning_rate(one("own_optimizers.WithoutRate")) is None
    assert learning_rate(one("own_optimizers.adam_of")) == 1e-3


def test_the_first_group_that_matches_takes_a_parameter():
    model = net()
    groups = [{"match": ["1.*"], "lr": 0.5}, {"match": ["*.bias", "1.weight"], "weight_decay": 0.25}]
    rest, norm, biases = one("torch.optim.SGD", model=model, lr=0.1, groups=groups).param_groups
    assert rest["params"] == [model[0].weight, model[2].weight]
    assert norm["params"] == [model[1].weight, model[1].bias]
    assert biases["params"] == [model[0].bias, model[2].bias]
    assert [(group["lr"], group["weight_decay"]) for group in (rest, norm, biases)] == [(0.1, 0), (0.5, 0), (0.1, 0.25)]


def test_groups_may_take_all_parameters():
    groups = one(groups=[{"match": ["*.bias"], "lr": 0.5}, {"match": ["*"], "lr": 0.25}]).param_groups
    assert [group["lr"] for group in groups] == [0.5, 0.25]


def test_each_of_several_optimizers_can_differ():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    each = {"critic": {"_target_": "torch.optim.SGD", "momentum": 0.9}}
    generator, critic = built(model=model, trains=TWO, lr=0.5, beta1=0.25, each=each).values()
    assert (type(generator), generator.defaults["betas"]) == (torch.optim.Adam, (0.25, 0.999))
    assert (type(critic), critic.defaults["lr"], critic.defaults["momentum"]) == (torch.optim.SGD, 0.5, 0.9)
    assert critic.param_groups[0]["params"] == [*model[1].parameters()]


def test_a_frozen_parameter_needs_no_optimizer():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    assert [*built(model=model, trains={"generator": ["0.*"]})] == ["generator"]


GROUP = {"match": ["*.bias"], "lr": 0.5}
REFUSED = {
    "no optimizer trains 1.weight; the task has generator for 0.*, and requires_grad=False freezes a parameter": {
        "trains": {"generator": ["0.*"]}
    },
    "0.weight is trained by two optimizers, one and two": {"trains": {"one": ["*"], "two": ["0.*"]}},
    "the optimizer two trains no parameter: none matches 9.*": {"trains": {"one": ["*"], "two": ["9.*"]}},
    "optimizer.each.crtic: there is no such optimizer; the task has optimizer": {"each": {"crtic": {"lr": 0.5}}},
    "optimizer.groups[0].match: no parameter to train is called *.biass": {"groups": [GROUP | {"match": ["*.biass"]}]},
    "optimizer.groups[1]: the groups before it take all parameters that it matches": {"groups": [GROUP, GROUP]},
    "optimizer.groups: SGD has no hyperparameter wd that a group can have; allowed are dampening, lr, maximize, "
    "momentum, nesterov, weight_decay": {"groups": [GROUP | {"wd": 0}]},
    "optimizer.groups: SGD has no hyperparameter fused that a group can have; allowed are dampening, lr, maximize, "
    "momentum, nesterov, weight_decay": {"groups": [GROUP | {"fused": False}]},
    "optimizer=SGD: TypeError: SGD.__init__() got an unexpected keyword argument 'momntum'": {"momntum": 0.9},
    "optimizer=SGD: Invalid momentum value: -1": {"momentum": -1},
    "optimizer.capturable=true: SGD has no such argument": {"capturable": True},
    "optimizer.fused=true: torch has no fused SGD on xla": {"fused": True, "device": torch.device("xla")},
    "optimizer.fused=true: NAdam has no such argument": {"target": "torch.optim.NAdam", "fused": True},
    "optimizer.fused=true: Lion has no such argument": {"target": "own_optimizers.Lion", "fused": True},
    "optimizer=LBFGS: its step needs a closure that computes the loss again, and a training step computes it once": {
        "target": "torch.optim.LBFGS"
    },
    "optimizer=Muon: Muon only supports 2D parameters whereas we found a parameter with size: torch.Size([4])": {
        "target": "torch.optim.Muon"
    },
    "optimizer._target_=own_optimizers.counted gave a int, not a torch Optimizer": {"target": "own_optimizers.counted"},
    "optimizer=forgetful does not train 0.bias, which it was given": {"target": "own_optimizers.forgetful"},
    "optimizer=SparseAdam cannot take a step: RuntimeError: SparseAdam does not support dense gradients, please "
    "consider Adam instead": {"target": "torch.optim.SparseAdam"},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_train_is_refused_before(sentence):
    settings = dict(REFUSED[sentence])
    target, trains = settings.pop("target", "torch.optim.SGD"), settings.pop("trains", ONE)
    device = settings.pop("device", CPU)
    with torch.device("meta"):
        model = net()
    with pytest.raises(UserError) as refused:
        rehearse_optimizers(
            {"_target_": target, "name": "custom", **settings},
            model,
            trains,
            device=device,
            precision=PRECISION_MODES["fp32"],
        )
    assert str(refused.value) == sentence


def test_sparse_gradients_are_refused_before():
    config = {"_target_": "torch.optim.SGD", "name": "custom", "lr": 0.1}
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    with pytest.raises(UserError, match=r"^0 is an embedding with sparse=True; gradients here are dense$"):
        rehearse_optimizers(config, model, ONE, device=CPU, precision=PRECISION_MODES["fp32"])


def test_a_parameter_unfrozen_after_the_build_is_told():
    training = assemble(*BIGRAMS, "+model.frozen=true", "trainer.log_every=3", "trainer.steps=9")
    training.built.model[1].bias.requires_grad_()
    with pytest.raises(ValueError, match=r"^1\.bias was frozen when .*, and no longer is at step 3: none of them"):
        training.train()


def test_matrices_alone_can_be_muons():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    each = {"critic": {"_target_": "torch.optim.Adam"}}
    muon, adam = built("torch.optim.Muon", model=model, trains={"muon": ["0.*"], "critic": ["1.*"]}, each=each).values()
    assert (type(muon), type(adam)) == (torch.optim.Muon, torch.optim.Adam)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_torchs_optimizers_are_fused_where_torch_has_the_kernels(name):
    for device in (CPU, CUDA):
        optimizer = one(f"torch.optim.{name}", device=device)
        assert optimizer.defaults["fused"] is has_fused_kernels(type(optimizer), device.type) is True
        assert is_fused(optimizer) == (
            name != "Adagrad" or INSTALLED_TORCH >= (2, 12)
        )  # 2.11's leaves it to the scaler
    assert not has_fused_kernels(torch.optim.RMSprop, "cpu")
    assert not is_fused(one(f"torch.optim.{name}", fused=False))
    assert not is_fused(one(f"torch.optim.{name}", foreach=True))


def test_a_fused_optimizer_of_ones_own_is_counted_on_the_device():
    overflows = ("precision=amp_fp16", "precision.init_scale=67108864", "scheduler=linear", "trainer.steps=16")
    training = assemble(*MLP, *chosen("own_optimizers.Scaling"), *overflows)
    training.train()
    assert training.trainer.instruments.counts_on_device
    applied = [0, *(int(row["amp/applied_steps"]) for row in training.rows)]
    assert any(before == after for before, after in pairwise(applied)), "some steps were skipped"
    expected = [1e-2 * (1 - before / 16) for before in applied[:-1]]
    assert list(training.column("train/lr").values()) == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_without_a_rate_logs_none():
    training = assemble(*MLP, *chosen("own_optimizers.WithoutRate"), "trainer.steps=2")
    training.train()
    assert training.column("train/lr") == {}
    with pytest.raises(
        UserError, match=r"^scheduler=cosine: WithoutRate has no learning rate to set; give optimizer\.lr,"
    ):
        assemble(*MLP, *chosen("own_optimizers.WithoutRate"), "scheduler=cosine")


def test_what_a_class_keeps_in_its_groups_goes_on(tmp_path):
    overrides = (*MLP, *chosen("own_optimizers.Decaying", lr=0.5), "trainer.steps=8")
    assemble(*overrides, directory=tmp_path).train(StopAfter(3))
    rest, _ = resumed(tmp_path, *overrides, "optimizer.lr=0.25")
    (group,) = rest.built.optimizers["optimizer"].param_groups
    assert (group["taken"], group["lr"]) == (3, 0.25), "the learning rate is the run's own"


def test_classes_of_one_name_are_not_taken_for_each_other(tmp_path):
    assemble(*MLP, *chosen("own_optimizers.Lion"), "trainer.steps=4", directory=tmp_path).train(StopAfter(2))
    _, notes = resumed(tmp_path, *MLP, "optimizer=adam", "trainer.steps=4")
    assert notes == ["the checkpoint's own_optimizers.Lion state is ignored; Adam starts fresh"]


def test_the_state_follows_its_parameter_into_other_groups(tmp_path):
    overrides = (*MLP, "optimizer=adam", "trainer.steps=6")
    assemble(*overrides, directory=tmp_path).train(StopAfter(3))
    plain, _ = resumed(tmp_path, *overrides)
    grouped, notes = resumed(tmp_path, *overrides, "optimizer.groups=[{match:[*.bias],weight_decay:0.0}]")
    plain.train()
    grouped.train()
    assert notes == []
    assert all(map(torch.equal, plain.parameters(), grouped.parameters()))


def test_ones_own_class_is_found():
    assert isinstance(one("own_optimizers.Lion"), own_optimizers.Lion)
