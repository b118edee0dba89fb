"""torchao's optimizers, which keep their states in 8 bits: from the config to the checkpoint, as they are."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, StopAfter, assemble, resumed
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import PRECISION_MODES, dtypes_of
from ampsweep.data.digits import Digits
from ampsweep.models.mlp import MLP
from ampsweep.observe.step import trace_step
from ampsweep.precision import Precision
from ampsweep.precision.torchao_import import import_torchao
from ampsweep.training.checkpoint import CheckpointError, load_checkpoint
from ampsweep.training.components.optimizer import build_optimizers, class_name, rehearse_optimizers

pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
optim = import_torchao("torchao.optim", "this test")

SEED, LR, NUM_STEPS = 5, 3e-3, 8
SIZES = {"in_features": 64, "hidden_size": 128, "out_features": 10, "num_layers": 3}
MODEL = ("model=mlp_small", "model.hidden_size=128", "model.num_layers=3", "data=digits", "data.batch_size=16")
"""Two weights of 8,192 and 16,384 numbers, and four parameters that are too small."""
COSINE = (f"optimizer.lr={LR}", "scheduler=cosine", f"trainer.steps={NUM_STEPS}", f"seed={SEED}")
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
OVERFLOWS = 2.0**24
EVERY = {
    "adamw_8bit": optim.AdamW8bit,
    "adamw_fp8": optim.AdamWFp8,
    "Adam8bit": optim.Adam8bit,
    "AdamFp8": optim.AdamFp8,
}
"""By the option of the group, or the name of a class that has none."""
ADAMW = {"_target_": "torchao.optim.AdamW8bit", "name": "adamw_8bit", "lr": 1e-3}
TRAINS = {"optimizer": ("*",)}


def eight_bit(name, *overrides):
    own = (f"optimizer={name}",) if name.islower() else ("optimizer=custom", f"optimizer._target_=torchao.optim.{name}")
    return (*MODEL, *own, *COSINE, *overrides)


def one(model=None, **settings):
    model = model or MLP(**SIZES)
    return build_optimizers(ADAMW | settings, model, TRAINS, Precision("fp32", CPU))["optimizer"]


def states_of(training):
    """The codes and scales of every packed state, and the numbers of the others."""
    found = []
    for state in training.built.optimizers["optimizer"].state.values():
        for value in state.values():
            parts = value.__tensor_flatten__()[0] if hasattr(value, "codes") else []
            found += [getattr(value, name).float() for name in parts] or [value]
    return found


def by_hand(kind, mode, *, accumulate, init_scale):
    """torchao's optimizer as its documentation has it: the learning rate is a tensor, filled in place."""
    torch.manual_seed(SEED)
    model, data = MLP(**SIZES), Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
    optimizer = kind(model.parameters(), lr=LR, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=mode == "amp_fp16")
    losses, applied = [], 0
    for step in range(NUM_STEPS):
        optimizer.param_groups[0]["lr"].fill_(LR * (0.5 * (1 + math.cos(math.pi * (applied / NUM_STEPS)))))
        total = 0.0
        for micro in range(accumulate):
            inputs, classes = data.train_batch(step * accumulate + micro)
            with torch.autocast("cpu", DTYPES[mode], enabled=mode != "fp32"):
                loss = F.cross_entropy(model(inputs), classes) / accumulate
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        with torch.compiler.set_stance("force_eager"):
            scaler.step(optimizer)
        scaler.update()
        applied += scaler.get_scale() >= before
        optimizer.zero_grad()
        losses.append(float(total))
    return losses, list(model.parameters())


@pytest.mark.parametrize(
    ("name", "mode", "init_scale"),
    [
        *((one, "fp32", 1.0) for one in EVERY),
        ("adamw_8bit", "amp_bf16", 1.0),
        ("adamw_8bit", "amp_fp16", OVERFLOWS),
        ("adamw_fp8", "amp_fp16", OVERFLOWS),
    ],
)
def test_a_training_is_bitwise_a_loop_by_hand(name, mode, init_scale):
    expected, parameters = by_hand(EVERY[name], mode, accumulate=2, init_scale=init_scale)
    overrides = ("optimizer.weight_decay=0.01", f"precision={mode}", "trainer.grad_accum_steps=2")
    training = assemble(*eight_bit(name), *overrides, f"precision.init_scale={init_scale:.1f}")
    training.train()
    assert list(training.column("train/loss").values()) == expected
    assert all(map(torch.equal, training.parameters(), parameters))
    rates = list(training.column("train/lr").values())
    assert rates[0] == pytest.approx(LR)
    assert rates[-1] < LR / 2 or mode == "amp_fp16"


def test_what_is_kept_in_8_bits_is_told():
    training = assemble(*eight_bit("adamw_8bit"))
    training.train()
    large, scales, table = 64 * 128 + 128 * 128, (64 * 128 + 128 * 128) // 256 * 4, 4 * 256
    codes, float32, steps = 2 * large, 2 * (scales + 2 * table + 4 * (128 * 10 + 128 + 128 + 10)), 6 * 4
    assert training.trainer.instruments.memory().peak["optimizer_state"] == codes + float32 + steps
    kept = {name: dtypes_of(compose_one(eight_bit(name))).optimizer_state for name in ("adamw", *EVERY)}
    assert kept == {"adamw": "float32"} | dict.fromkeys(EVERY, "float8_e4m3fn") | {
        "adamw_8bit": "uint8",
        "Adam8bit": "uint8",
    }


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_fp8"])
@pytest.mark.parametrize("mode", ["fp32", "pure_bf16"])
def test_a_resumed_training_is_bitwise_an_uninterrupted_one(name, mode, tmp_path):
    overrides = eight_bit(name, f"precision={mode}")
    whole = assemble(*overrides)
    whole.train()
    assemble(*overrides, directory=tmp_path).train(StopAfter(3))
    rest, notes = resumed(tmp_path, *overrides)
    rest.train()
    assert notes == []
    assert all(map(torch.equal, whole.parameters(), rest.parameters()))
    assert all(map(torch.equal, states_of(whole), states_of(rest)))


def test_a_checkpoint_is_read_without_torchao_imported(tmp_path):
    training = assemble(*eight_bit("adamw_8bit"), directory=tmp_path)
    training.train(StopAfter(3))
    script = (
        "import sys; from pathlib import Path; from ampsweep.training.checkpoint import load_checkpoint\n"
        "assert 'torchao' not in sys.modules\n"
        f"found = load_checkpoint(Path({str(tmp_path / 'checkpoints/last.pt')!r}))\n"
        "state = found.optimizers['optimizer']['state']['state'][0]['exp_avg']\n"
        "print(type(state).__name__, float(state.dequantize().double().sum()))"
    )
    read = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    expected = training.built.optimizers["optimizer"].state_dict()["state"][0]["exp_avg"].dequantize().double().sum()
    assert (read.stdout.split(), read.stderr) == (["OptimState8bit", str(float(expected))], "")


def test_a_checkpoint_without_torchao_is_one_sentence(tmp_path, monkeypatch):
    assemble(*eight_bit("adamw_8bit"), directory=tmp_path).train(StopAfter(3))
    monkeypatch.setattr("ampsweep.precision.torchao_import.find_spec", lambda _: None)
    monkeypatch.setattr("ampsweep.training.checkpoint.get_unsafe_globals_in_checkpoint", lambda _: ["torchao.optim.A"])
    with pytest.raises(
        CheckpointError, match=r"^checkpoint .*last\.pt needs the optional package torchao: pip install"
    ):
        load_checkpoint(tmp_path / "checkpoints/last.pt")


@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw_fp8")])
def test_the_states_of_another_class_are_left_where_they_are(before, after, tmp_path):
    assemble(*eight_bit(before), directory=tmp_path).train(StopAfter(4))
    rest, (note,) = resumed(tmp_path, *eight_bit(after))
    assert note.endswith(f" state is ignored; {class_name(rest.built.optimizers['optimizer'])} starts fresh")
    rest.train()
    assert rest.trainer.step == NUM_STEPS


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"fused": True}, "optimizer.fused=true: adamw_8bit has no such argument"),
        ({"maximize": True}, "optimizer=adamw_8bit: "),
        ({"betas": (0.9, 2.0)}, "optimizer=adamw_8bit: Invalid beta parameter at index 1: 2.0"),
        ({"groups": [{"match": ["*"], "momentum": 0.5}]}, "optimizer.groups: AdamW8bit has no hyperparameter momentum"),
    ],
)  # fmt: skip
def test_what_torchao_lacks_is_refused(settings, sentence):
    with pytest.raises(UserError) as refused:
        rehearse_optimizers(ADAMW | settings, MLP(**SIZES), TRAINS, device=CPU, precision=PRECISION_MODES["fp32"])
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("mode", ["bf16_sr", "pure_bf16"])
def test_its_own_stochastic_rounding_is_an_argument_of_the_class(mode):
    """The suite's rounds pieces of parameters, of which it does not know that torchao's classes take them."""
    training = partial(assemble, *eight_bit("adamw_8bit", f"precision={mode}"))
    if mode == "bf16_sr":
        with pytest.raises(UnsupportedError, match=r"^optimizer=adamw_8bit: stochastic rounding needs a class that"):
            training()
    else:
        training("+optimizer.bf16_stochastic_round=true").train()


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit"])
def test_a_class_of_torchaos_can_be_asked_for_by_itself(name):
    custom = ("optimizer=custom", f"optimizer._target_=torchao.optim.{name}", "optimizer.lr=0.003")
    training = assemble(*MODEL, *custom, "+optimizer.beta1=0.8", "scheduler=cosine", "trainer.steps=4")
    training.train()
    optimizer = training.built.optimizers["optimizer"]
    assert class_name(optimizer) == f"torchao.optim.adam.{name}"
    assert optimizer.param_groups[0]["betas"] == [0.8, 0.999]
    assert training.trainer.instruments.proof().num_operators > 100, "it steps as it is traced"


def test_groups_have_hyperparameters_of_their_own():
    optimizer = one(groups=[{"match": ["*.bias"], "lr": 0.5, "weight_decay": 0.0, "beta1": 0.5}], beta1=0.8)
    (rest, biases) = optimizer.param_groups
    assert (float(rest["lr"]), tuple(rest["betas"])) == (pytest.approx(1e-3), (0.8, 0.999))
    assert (float(biases["lr"]), biases["weight_decay"], biases["betas"]) == (0.5, 0.0, (0.5, 0.999))
    assert {one.ndim for one in biases["params"]} == {1}


def test_one_of_two_optimizers_keeps_8_bits():
    late = {"_target_": "torchao.optim.AdamWFp8", "block_size": 128}
    settings = {"_target_": "torch.optim.AdamW", "name": "adamw", "lr": 1e-3, "each": {"late": late}}
    trains = {"early": ("layers.0.*",), "late": ("layers.[!0]*",)}
    names = [name for name, _ in MLP(**SIZES).named_parameters()]
    trains = {"early": names[:2], "late": names[2:]}
    found = build_optimizers(settings, MLP(**SIZES), trains, Precision("fp32", CPU))
    assert [class_name(optimizer) for optimizer in found.values()] == ["AdamW", "torchao.optim.adam.AdamWFp8"]
    assert found["late"].block_size == 128


def test_a_schedule_fills_the_learning_rate_in_place():
    training = assemble(*eight_bit("adamw_fp8"))
    (group,) = training.built.optimizers["optimizer"].param_groups
    kept = group["lr"]
    training.train()
    assert group["lr"] is kept
    assert training.trainer.schedule.learning_rate() == float(kept) < LR


@pytest.mark.parametrize("torch_scheduler", ["CosineAnnealingLR", "ExponentialLR"])
def test_a_scheduler_of_torch_leaves_the_optimizers_own_rate(torch_scheduler):
    argument = {"CosineAnnealingLR": "T_max=8", "ExponentialLR": "gamma=0.5"}[torch_scheduler]
    scheduler = (f"scheduler._target_=torch.optim.lr_scheduler.{torch_scheduler}", f"+scheduler.{argument}")
    columns = []
    for name in ("adamw", "adamw_8bit"):
        training = assemble(*eight_bit(name), "scheduler=custom", *scheduler)
        training.train()
        columns.append([*training.column("train/lr").values()])
    assert columns[1] == pytest.approx(columns[0], rel=1e-6)
    assert columns[1][-1] < columns[1][0]


def test_without_torchao_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.setattr("ampsweep.precision.torchao_import.find_spec", lambda _: None)
    sentence = r"^optimizer\._target_=torchao\.optim\.AdamW8bit needs .*torchao: pip install -e '\.\[modes\]'$"
    with pytest.raises(UserError, match=sentence):
        one()


def test_8_bits_are_no_dtype_of_states():
    with pytest.raises(UserError, match=r"^optimizer\.state_dtype=int8: allowed are float32, bfloat16$"):
        compose_one((*MODEL, "optimizer=adamw", "optimizer.state_dtype=int8"))


def stepped(*, traced_at, kind, device=CPU):
    """A weight and its state after four steps, of which one is traced, and the operators seen in the traced step."""
    torch.manual_seed(0)
    layer, numbers = nn.Linear(64, 64, bias=False).to(device), torch.Generator().manual_seed(1)
    settings = ADAMW | {"_target_": "torchao.optim.AdamWFp8"}
    optimizer = build_optimizers(settings, layer, TRAINS, Precision("fp32", device), device=kind)["optimizer"]
    seen = 0
    for number in range(4):
        layer(torch.randn(8, 64, generator=numbers).to(device)).square().mean().backward()
        if number == traced_at:
            with trace_step(layer, optimizer) as trace:
                optimizer.step()
            seen = trace.result.num_operators
        else:
            optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state[layer.weight]
    return [layer.weight.detach(), state["exp_avg_sq"].codes.float(), state["exp_avg"].scale], seen


def check_a_traced_step(**settings):
    """A trace changes no value; return the number of operators that it saw."""
    plain, _ = stepped(traced_at=None, **settings)
    traced, seen = stepped(traced_at=2, **settings)
    assert all(map(torch.equal, plain, traced))
    return seen


def test_a_traced_step_on_the_cpu_is_as_eager_as_all_others():
    assert check_a_traced_step(kind=CPU) > 20


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own import
def test_a_compiled_step_is_compiled_within_a_trace_too(monkeypatch):
    """The class for CUDA, with parameters on the CPU and a backend that generates no code."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert check_a_traced_step(kind=torch.device("cuda")) < 5, "nothing but the profiler's marks"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_traced_step_on_a_gpu_changes_no_value():
    cuda = torch.device("cuda")
    assert check_a_traced_step(kind=cuda, device=cuda) < 5


def test_hooks_of_the_step_are_called_once():
    optim.AdamWFp8([nn.Parameter(torch.zeros(4096))])  # after which torch's wrapper is around its step, too
    optimizer, calls = one(_target_="torchao.optim.AdamWFp8"), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    assert calls == [1]
