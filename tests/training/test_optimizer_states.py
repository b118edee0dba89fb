"""torchao's optimizers, which keep their state in 8 bits, from the config to the checkpoint."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from assembled import CPU, StopAfter, assemble, assert_resumes_bitwise, resumed, trained
from devices import needs_cuda
from hand_loop import OVERFLOWS, assert_same, by_hand, settings
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import PRECISION_MODES, dtypes_of
from ampsweep.models.mlp import MLP
from ampsweep.observe.step import trace_step
from ampsweep.precision import Precision
from ampsweep.precision.torchao_import import import_torchao
from ampsweep.training.checkpoint import CheckpointError, load_checkpoint
from ampsweep.training.components.optimizer import build_optimizers, class_name, rehearse_optimizers

pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
optim = import_torchao("torchao.optim", "this test")

LR, NUM_STEPS = 3e-3, 8
SIZES = {"in_features": 64, "hidden_size": 128, "out_features": 10, "num_layers": 3}
MODEL = ("model=mlp_small", "model.hidden_size=128", "model.num_layers=3", "data=digits", "data.batch_size=16")
"""Two weights of 8,192 and 16,384 numbers, and four parameters that are too small for 8 bits."""
CLASSES = {"adamw_8bit": "AdamW8bit", "adamw_fp8": "AdamWFp8", "Adam8bit": "Adam8bit", "AdamFp8": "AdamFp8"}
"""By option of the group `optimizer`, or by the name of a class that has none."""
ADAMW = {"_target_": "torchao.optim.AdamW8bit", "name": "adamw_8bit", "lr": 1e-3}
TRAINS = {"optimizer": ("*",)}


def chosen(name, *overrides):
    by_class = ("optimizer=custom", f"optimizer._target_=torchao.optim.{name}")
    option = (f"optimizer={name}",) if name.islower() else by_class
    return (*MODEL, *option, f"optimizer.lr={LR}", "scheduler=cosine", f"trainer.steps={NUM_STEPS}", *overrides)


def built(model=None, place=CPU, kind=None, **changes):
    model = model or MLP(**SIZES)
    return build_optimizers(ADAMW | changes, model, TRAINS, Precision("fp32", place), device=kind)["optimizer"]


@pytest.mark.parametrize(
    ("name", "mode", "init_scale"),
    [
        *((name, "fp32", 1.0) for name in CLASSES),
        *(("adamw_8bit", "amp_bf16", 1.0), ("adamw_8bit", "amp_fp16", OVERFLOWS), ("adamw_fp8", "amp_fp16", OVERFLOWS)),
    ],
)
def test_a_training_is_bitwise_a_loop_by_hand(name, mode, init_scale):
    def set_rate(optimizer, applied):  # a tensor, filled in place as in torchao's documentation
        optimizer.param_groups[0]["lr"].fill_(LR * (0.5 * (1 + math.cos(math.pi * (applied / NUM_STEPS)))))

    clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)  # noqa: E731
    make = partial(getattr(optim, CLASSES[name]), lr=LR, weight_decay=0.01)
    parts = {"make_model": lambda: MLP(**SIZES), "accumulate": 2, "clip": clip, "set_rate": set_rate}
    with torch.compiler.set_stance("force_eager"):
        hand = by_hand(mode, make, steps=NUM_STEPS, init_scale=init_scale, **parts)
    more = ("optimizer.weight_decay=0.01", "trainer.grad_accum_steps=2", *settings(mode, init_scale))
    training = assemble(*chosen(name, *more))
    (group,) = training.optimizer.param_groups
    rate = group["lr"]
    training.train()
    assert_same(training, hand)
    assert group["lr"] is rate


def test_the_state_takes_8_bits_a_number():
    memory = trained(*chosen("adamw_8bit")).instruments.memory()
    large, scales, table = 64 * 128 + 128 * 128, (64 * 128 + 128 * 128) // 256 * 4, 4 * 256
    codes, float32, steps = 2 * large, 2 * (scales + 2 * table + 4 * (128 * 10 + 128 + 128 + 10)), 6 * 4
    assert memory.peak["optimizer_state"] == codes + float32 + steps
    dtypes = [dtypes_of(compose_one(chosen(name))).optimizer_state for name in ("adamw", "adamw_8bit", "AdamFp8")]
    assert dtypes == ["float32", "uint8", "float8_e4m3fn"]


def test_it_resumes_bitwise(tmp_path):
    for name, mode in (("adamw_8bit", "pure_bf16"), ("adamw_fp8", "fp8_tensorwise")):
        (tmp_path / name).mkdir()
        assert_resumes_bitwise(tmp_path / name, *chosen(name, f"precision={mode}"), stop_after=3)


@pytest.mark.nightly
def test_a_checkpoint_is_read_without_torchao_imported(tmp_path):
    training = assemble(*chosen("adamw_8bit"), directory=tmp_path)
    training.train(StopAfter(3))
    script = (
        "import sys; from pathlib import Path; from ampsweep.training.checkpoint import load_checkpoint\n"
        "assert 'torchao' not in sys.modules\n"
        "optimizer = load_checkpoint(Path('checkpoints/last.pt')).optimizers['optimizer']\n"
        "print(float(optimizer['state']['state'][0]['exp_avg'].dequantize().double().sum()))"
    )
    printed = subprocess.check_output([sys.executable, "-W", "error", "-c", script], text=True, cwd=tmp_path)
    expected = training.optimizer.state_dict()["state"][0]["exp_avg"].dequantize().double().sum()
    assert float(printed) == float(expected)


def test_a_checkpoint_of_another_class_or_without_torchao(tmp_path, monkeypatch):
    assemble(*chosen("adamw_8bit"), directory=tmp_path).train(StopAfter(3))
    rest, (note,) = resumed(tmp_path, *chosen("adamw_fp8"))
    assert note.endswith(" state is ignored; torchao.optim.adam.AdamWFp8 starts fresh")
    assert rest.train().status == "completed"
    monkeypatch.setattr("ampsweep.precision.torchao_import.find_spec", lambda _: None)
    monkeypatch.setattr("ampsweep.training.checkpoint.get_unsafe_globals_in_checkpoint", lambda _: ["torchao.optim.A"])
    with pytest.raises(CheckpointError, match=r"^checkpoint .*last\.pt needs the optional package torchao: pip inst"):
        load_checkpoint(tmp_path / "checkpoints/last.pt")
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    sentence = r"^optimizer\._target_=torchao\.optim\.AdamW8bit needs .*torchao: pip install -e '\.\[modes\]'$"
    with pytest.raises(UserError, match=sentence):
        built()


def test_settings_that_torchao_lacks_are_refused():
    for changes, sentence in (
        ({"fused": True}, "optimizer.fused=true: adamw_8bit has no such argument"),
        ({"maximize": True}, "optimizer=adamw_8bit: "),
        ({"groups": [{"match": ["*"], "momentum": 0.5}]}, "optimizer.groups: AdamW8bit has no hyperparameter momentum"),
    ):
        with pytest.raises(UserError, match=f"^{sentence}"):
            rehearse_optimizers(ADAMW | changes, MLP(**SIZES), TRAINS, device=CPU, precision=PRECISION_MODES["fp32"])


def test_a_class_can_be_chosen_by_its_name_and_rounds_by_itself():
    training = trained(*chosen("AdamW4bit", "+optimizer.beta1=0.8"))
    assert class_name(training.optimizer) == "torchao.optim.adam.AdamW4bit"
    assert training.optimizer.param_groups[0]["betas"] == [0.8, 0.999]
    assert training.instruments.proof().num_operators > 100, "it steps in the traced step"
    with pytest.raises(UnsupportedError, match=r"^optimizer=adamw_8bit: stochastic rounding needs a class that"):
        assemble(*chosen("adamw_8bit", "precision=bf16_sr"))
    trained(*chosen("adamw_8bit", "precision=pure_bf16", "+optimizer.bf16_stochastic_round=true"))


def test_groups_and_optimizers_have_their_own_hyperparameters():
    optimizer = built(groups=[{"match": ["*.bias"], "lr": 0.5, "weight_decay": 0.0, "beta1": 0.5}], beta1=0.8)
    (rest, biases) = optimizer.param_groups
    assert (float(rest["lr"]), tuple(rest["betas"])) == (pytest.approx(1e-3), (0.8, 0.999))
    assert (float(biases["lr"]), biases["weight_decay"], biases["betas"]) == (0.5, 0.0, (0.5, 0.999))
    late = {"_target_": "torchao.optim.AdamWFp8", "block_size": 128}
    config = {"_target_": "torch.optim.AdamW", "name": "adamw", "lr": 1e-3, "each": {"late": late}}
    trains = {"early": ["blocks.0.*"], "late": ["blocks.[!0].*", "head.*"]}
    found = build_optimizers(config, MLP(**SIZES), trains, Precision("fp32", CPU))
    assert [class_name(optimizer) for optimizer in found.values()] == ["AdamW", "torchao.optim.adam.AdamWFp8"]
    assert found["late"].block_size == 128


def test_a_scheduler_of_torch_sets_the_same_rates():
    cosine = ("scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingLR", "+scheduler.T_max=8")
    trainings = (trained(*chosen(name, "scheduler=custom", *cosine)) for name in ("adamw", "adamw_8bit"))
    plain, low = ([*training.column("train/lr").values()] for training in trainings)
    assert low == pytest.approx(plain, rel=1e-6)
    assert low[-1] < low[0]


def check_a_traced_step(*, kind, device=CPU):
    """A trace of one of four steps changes no value; returns the number of operators that it saw."""
    results, num_seen = [], 0
    for traced_at in (None, 2):
        torch.manual_seed(0)
        layer, numbers = nn.Linear(64, 64, bias=False).to(device), torch.Generator().manual_seed(1)
        optimizer = built(layer, device, kind, _target_="torchao.optim.AdamWFp8")
        for number in range(4):
            layer(torch.randn(8, 64, generator=numbers).to(device)).square().mean().backward()
            if number == traced_at:
                with trace_step(layer, optimizer) as trace:
                    optimizer.step()
                num_seen = trace.result.num_operators
            else:
                optimizer.step()
            optimizer.zero_grad()
        state = optimizer.state[layer.weight]
        results.append([layer.weight.detach(), state["exp_avg_sq"].codes.float(), state["exp_avg"].scale])
    assert all(map(torch.equal, *results))
    return num_seen


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own import
def test_a_traced_step_computes_as_all_others_do(monkeypatch):
    assert check_a_traced_step(kind=CPU) > 20, "it is eager on the CPU"
    # The class for CUDA, with parameters on the CPU and a backend that generates no code.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert check_a_traced_step(kind=torch.device("cuda")) < 5, "compiled: nothing but the profiler's marks"


@needs_cuda
def test_a_traced_step_on_a_gpu_changes_no_value():
    assert check_a_traced_step(kind=torch.device("cuda"), device=torch.device("cuda")) < 5


def test_hooks_of_the_step_are_called_once():
    optim.AdamWFp8([nn.Parameter(torch.zeros(4096))])  # after which torch's wrapper is around its step, too
    optimizer, calls = built(_target_="torchao.optim.AdamWFp8"), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    assert calls == [1]
