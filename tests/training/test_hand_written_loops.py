"""Trainings, of a stranger's project too, are bitwise the loops that anyone would write from torch's own parts."""

import importlib
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from assembled import MLP, assemble, assert_resumes_bitwise, own, resumed, trained
from hand_loop import MODES, OVERFLOWS, assert_same, by_hand, settings
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.data.base import stop_workers
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.training.components.instantiate import locate
from ampsweep.user_code import own_code

LR, NUM_STEPS, HEAD = 3e-3, 12, "precision.fp32_modules=[head]"


def cosine(applied):
    return 0.5 * (1 + math.cos(math.pi * (applied / NUM_STEPS)))


@pytest.mark.parametrize(
    ("accumulate", "max_norm", "max_value"), [(1, 1.0, None), (3, 0.05, 0.003), (2, None, 0.003)], ids=str
)
@pytest.mark.parametrize(("mode", "init_scale"), MODES)
def test_accumulation_clipping_and_schedule(mode, init_scale, accumulate, max_norm, max_value):
    """Where the scale overflows, clipping by value makes infinite gradients finite, and yet the step is skipped."""
    peak = torch.tensor(LR) if mode == "amp_fp16" else LR  # on the device, where steps are counted there

    def clip(parameters):
        if max_value is not None:
            nn.utils.clip_grad_value_(parameters, max_value)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)

    def set_rate(optimizer, applied):
        optimizer.param_groups[0]["lr"] = peak * cosine(applied)

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=peak, weight_decay=0.01, fused=True)

    parts = {"accumulate": accumulate, "clip": clip, "set_rate": set_rate}
    hand = by_hand(mode, adamw, steps=NUM_STEPS, init_scale=init_scale, **parts)
    limits = {"max_grad_norm": max_norm, "max_grad_value": max_value}
    training = trained(
        *MLP, *settings(mode, init_scale), "optimizer=adamw", f"optimizer.lr={LR}", "scheduler=cosine",
        f"trainer.steps={NUM_STEPS}", f"trainer.grad_accum_steps={accumulate}",
        *(f"trainer.{key}={'null' if limit is None else limit}" for key, limit in limits.items()),
    )  # fmt: skip
    assert_same(training, hand)


@pytest.mark.parametrize(("mode", "init_scale"), [MODES[0], MODES[3]])
def test_a_group_with_a_limit_of_its_own_is_clipped_by_itself(mode, init_scale):
    norms = []

    def clip(parameters):
        rest, biases = ([p for p in parameters if (p.ndim == 1) == is_bias] for is_bias in (False, True))
        norms.append([float(nn.utils.clip_grad_norm_(part, limit)) for part, limit in ((rest, 0.15), (biases, 0.2))])

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=LR, fused=True)

    hand = by_hand(mode, sgd, steps=NUM_STEPS, init_scale=init_scale, clip=clip)
    training = trained(
        *MLP, *settings(mode, init_scale), "optimizer=sgd", f"optimizer.lr={LR}", "optimizer.momentum=0",
        "scheduler=constant", "optimizer.groups=[{match: ['*.bias'], max_grad_norm: 0.2}]",
        "trainer.max_grad_norm=0.15", f"trainer.steps={NUM_STEPS}",
    )  # fmt: skip
    hand.norms = [float(torch.linalg.vector_norm(torch.tensor(pair))) for pair in norms]
    assert_same(training, hand)
    clipped = [100.0 * (rest > 0.15 or biases > 0.2) for rest, biases in norms]
    assert [*training.column("train/clipped_pct").values()] == clipped
    assert {*clipped} == {0.0, 100.0}


def test_forward_and_loss_are_under_autocast_and_backward_is_not():
    training, seen = assemble(*MLP, "precision=amp_bf16", "trainer.steps=1"), {}
    model, loss = training.built.model, training.built.task.loss
    is_on = lambda: torch.is_autocast_enabled("cpu")  # noqa: E731
    model.register_forward_hook(lambda *_: seen.update(forward=is_on()))
    next(model.parameters()).register_hook(lambda _: seen.update(backward=is_on()))
    training.use_loss(lambda model, batch: seen.update(loss=is_on()) or loss(model, batch))
    training.trainer.train_step()
    assert seen == {"forward": True, "loss": True, "backward": False}


def penalized(model, batch, autocast, scaler):
    """The example "Gradient penalty" of torch's AMP examples."""
    with autocast():
        loss = F.cross_entropy(model(batch[0]), batch[1])
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inverse = 1.0 / scaler.get_scale()
    gradients = [p * inverse for p in scaled]
    with autocast():
        norm = 0
        for gradient in gradients:
            norm += gradient.pow(2).sum()
        return loss + 0.5 * norm.sqrt()


PENALTY = (*MLP, "task.gradient_penalty=0.5", "optimizer=sgd", "optimizer.lr=0.01", "trainer.max_grad_norm=null")


@pytest.mark.parametrize(("mode", "init_scale", "accumulate"), [(*mode, 1 + n % 2) for n, mode in enumerate(MODES)])
def test_a_gradient_penalty(mode, init_scale, accumulate):
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.01, fused=True)  # noqa: E731
    hand = by_hand(mode, sgd, steps=14, init_scale=init_scale, loss=penalized, accumulate=accumulate)
    steps = ("trainer.steps=14", f"trainer.grad_accum_steps={accumulate}")
    assert_same(trained(*PENALTY, *settings(mode, init_scale), *steps), hand)


def test_a_penalized_training_resumes_bitwise(tmp_path):
    assert_resumes_bitwise(tmp_path, *PENALTY, *settings("amp_fp16", OVERFLOWS), "trainer.steps=12")


HERE = [f"HERE.{name}" for name in ("WithAutocastable", "WithFloat32", "Decorated", "DecoratedOff", "Region")]
ON_CUDA = [f"ON_CUDA.{name}" for name in ("Decorated", "DecoratedOff", "Region")]


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "amp_fp16") for name in (*HERE, *ON_CUDA)), (HERE[-1], "amp_bf16"), (HERE[0], "fp32")]
)
def test_a_model_that_uses_autocast_itself(name, mode, seen):
    """Custom autograd functions, decorators and regions, for this device and for another."""
    make_model = lambda: locate("model", {"_target_": f"autocast_users.{name}"})()  # noqa: E731
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True)  # noqa: E731
    clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)  # noqa: E731
    hand = by_hand(mode, sgd, steps=4, init_scale=1024.0, make_model=make_model, clip=clip)
    dtypes = [*seen]
    seen.clear()
    sgd = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0", "trainer.max_grad_norm=1", "trainer.steps=4")
    assert_same(trained(*own("autocast_users", name), *settings(mode, 1024.0), *sgd), hand)
    assert seen[: len(dtypes)] == dtypes


def test_modules_kept_in_float32_are_a_subregion_by_hand(tmp_path):
    settings = (*MLP, "precision=amp_fp16", "trainer.steps=6", "precision.init_scale=1024")
    training, by_hand, plain = trained(*settings, HEAD), assemble(*settings), trained(*settings)
    head = by_hand.built.model.head

    def subregion(hidden, forward=head.forward):
        with torch.autocast("cpu", enabled=False):
            return forward(hidden.float())

    head.forward = subregion
    by_hand.train()
    assert training.column("train/loss") == by_hand.column("train/loss") != plain.column("train/loss")
    assert training.instruments.proof().fp32_module_flops.keys() == {"float32"}
    others, _ = resumed(training.keep(tmp_path), *MLP, "trainer.steps=8")
    assert all(map(torch.equal, others.parameters(), by_hand.parameters())), "its checkpoint fits others"
    with pytest.raises(UserError, match="there are blocks, head"):
        assemble(*MLP, "precision.fp32_modules=[haed]")


PROJECT = Path(__file__).parents[1] / "benchmarks/own_workloads"
NAMES = sorted(path.stem for path in (PROJECT / "conf/experiment").glob("*.yaml"))
ALWAYS = ("digits_gan", "dqn")
WORKLOADS = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.nightly) for name in NAMES]
STEPS = 8


@pytest.fixture
def own_project(request, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PROJECT)
    workload = request.node.callspec.params["workload"]
    if workload in ("bert", "gpt2"):
        pytest.importorskip("transformers")
    if workload == "images":
        pytest.importorskip("PIL")
        from zoo.folder import write_digits

        monkeypatch.chdir(tmp_path)
        write_digits(Path("images"))


def of_project(workload, mode):
    chosen = (f"hydra.searchpath=['file://{PROJECT / 'conf'}']", f"experiment={workload}", f"precision={mode}")
    return (*chosen, f"trainer.steps={STEPS}", "trainer.warmup_steps=0")


@pytest.mark.usefixtures("own_project")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_trains_as_written_by_hand_and_as_predicted(workload):
    import plain_loops

    for mode in ("fp32", "amp_bf16"):
        training = trained(*of_project(workload, mode))
        stop_workers(training.built.data)
        theirs = plain_loops.train(workload, asdict(training.config))
        losses, weights = [*training.column("train/loss").values()], training.built.model.state_dict()
        if mode == "fp32":
            assert losses == theirs["losses"]
            assert all(torch.equal(weights[name], theirs["weights"][name]) for name in weights)
        assert losses == pytest.approx(theirs["losses"], rel=2**-8)
        if workload == "experts":  # shapes that depend on values have no prediction
            continue
        step = FakeTraining(training.config, TargetDevice("cpu")).trace(training.built.data.batch_size)
        assert step.peak().categories == training.instruments.memory().peak


@pytest.mark.usefixtures("own_project")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_resumes_bitwise_in_float16(workload, tmp_path):
    mode = "amp_fp16" if workload != "lstm" else "amp_bf16"  # oneDNN trains no LSTM in float16
    assert_resumes_bitwise(tmp_path, *of_project(workload, mode), stop_after=STEPS // 2)


@pytest.mark.parametrize(
    "use", ["from my_layers import Layer", "import my_layers", "from my_layers import Layer as L\nlayer = L()\ndel L"]
)
def test_a_change_in_the_model_or_its_imports_is_a_new_version(use, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def version(nets, layers):
        """The version of these modules of the user, imported as by a process that has just begun."""
        for name, source in (("my_layers", layers), ("my_nets", nets)):
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(importlib.sys.modules, name, raising=False)
        importlib.invalidate_caches()
        importlib.import_module("my_nets")
        return own_code({"_target_": "ampsweep.data.digits.Digits"}, {"_target_": "my_nets.Net"})

    nets, layers = f"from torch import nn\n{use}\n\nclass Net(nn.Module): ...\n", "class Layer: ...\n"
    before = version(nets, layers)
    assert before.keys() == {"my_layers", "my_nets"}, "without installed packages and the suite itself"
    assert version(nets, layers) == before
    assert version(nets, layers + "# other\n")["my_layers"] != before["my_layers"]
    assert version(nets + "# other\n", layers)["my_nets"] != before["my_nets"]
    nested = {"_target_": "ampsweep.x.Y", "dataset": {"_target_": "my_nets.Net"}}
    assert own_code(nested, {"_target_": "torch.nn.Linear"}, {"_target_": "json.x"}).keys() == before.keys()
