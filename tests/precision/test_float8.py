"""Modes whose linear layers multiply in float8, by torchao's conversion, here emulated on the CPU."""

import copy
import math
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from traced import traced

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.precision import Precision
from ampsweep.precision import torchao_import as torchao_import_module
from ampsweep.precision.float8 import Float8
from ampsweep.precision.float8_layers import plan_layers
from ampsweep.precision.torchao_import import MissingTorchaoError, import_torchao

FP8 = ("fp8_tensorwise", "fp8_rowwise")


def net(kind=MLP):
    torch.manual_seed(0)
    return kind(32, 64, 10, 3)


def losses(model, autocast, backward):
    """The losses of a few steps on a fixed batch."""
    inputs, targets = torch.linspace(-1, 1, 24 * 32).reshape(24, 32).sin(), torch.arange(24) % 10
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(4):
        with autocast():
            loss = F.cross_entropy(model(inputs), targets)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def by_hand(recipe):
    """A model as anyone converts it with torchao, which casts inputs to autocast's dtype on CUDA only."""
    torchao = import_torchao("torchao.float8", "the test")
    model = net()
    config = replace(torchao.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    torchao.convert_to_float8_training(model, module_filter_fn=lambda _, name: name != "head", config=config)
    for block in model.blocks:
        block[0].register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    return model


@pytest.mark.parametrize("mode", FP8)
def test_a_hand_written_loop_has_bitwise_the_same_losses(mode):
    def ours(mode):
        precision = Precision(mode, "cpu")
        return losses(precision.convert(net()), precision.autocast, precision.backward)

    autocast = partial(torch.autocast, "cpu", torch.bfloat16)
    assert ours(mode) == losses(by_hand(mode.removeprefix("fp8_")), autocast, torch.Tensor.backward)
    assert ours(mode) != ours("amp_bf16")


def test_linear_layers_are_converted_unless_there_is_a_reason():
    layers = {
        "stem": (nn.Conv2d(3, 32, 3), "no_linear"),
        "body": (nn.Linear(32, 32), None),
        "odd": (nn.Linear(32, 24), "size"),
        "own": (type("Own", (nn.Linear,), {})(32, 32), "subclass"),
        "watched": (nn.Linear(32, 32), "changed"),
        "precise": (nn.Linear(32, 32), "fp32_modules"),
        "embedding": (nn.Embedding(48, 32), "no_linear"),
        "tied": (nn.Linear(32, 48, bias=False), "output"),
        "norm": (nn.LayerNorm(32), None),
        "head": (nn.Linear(32, 16), "output"),
    }
    model = nn.ModuleDict({name: layer for name, (layer, _) in layers.items()})
    model["watched"].register_forward_hook(lambda *_: None)
    model["tied"].weight = model["embedding"].weight
    converted, kept = plan_layers(model, ["precise"])
    assert [*converted] == ["body"]
    assert {layer.name: layer.why for layer in kept} == {name: why for name, (_, why) in layers.items() if why}
    assert not [layer for layer in plan_layers(GPT(48, 16, 2, 32, 2), [])[1] if layer.why == "output"], "of a block"
    assert [*plan_layers(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), [])[0]] == ["0"]


def test_layers_multiply_in_float8_under_autocast_alone_until_another_mode():
    model, precision, inputs = net(), Precision("fp8_tensorwise", "cpu"), torch.randn(4, 32)
    before, names, expected = [*model.parameters()], [*model.state_dict()], model(inputs)
    for _ in range(2):
        precision.convert(model)
    copied = copy.deepcopy(model)
    copied.blocks[0][0].weight.data.zero_()
    with torch.no_grad(), precision.eval_autocast():
        assert torch.equal(model(inputs), expected), "in float32"
    with torch.no_grad(), precision.eval_autocast("autocast"):
        assert not torch.equal(model(inputs), expected)
        assert not torch.equal(copied(inputs), model(inputs))
    assert type(model.blocks[0][0]).__name__ == "Float8Linear"
    assert all(left is right for left, right in zip(before, model.parameters(), strict=True))
    assert [*model.state_dict()] == names
    Precision("amp_bf16", "cpu").convert(model)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Linear)} == {nn.Linear}
    assert all("forward" not in vars(module) for module in model.modules())


def num_rows(layer):
    """Rows that a layer multiplied in the forward pass."""
    return sum(layer.flops.values()) // (2 * layer.in_features * layer.out_features)


class Checkpointed(MLP):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@pytest.mark.parametrize("mode", FP8)
def test_an_emulated_step_proves_each_layer(mode):
    precision, inputs = Precision(mode, "cpu"), torch.randn(32, 32)
    precision.prove()
    proof = traced(precision, net(), inputs)
    float8 = proof.float8
    assert float8.arithmetic == "rounded"
    assert "cpu" in float8.emulated
    counts = [(layer.name, num_rows(layer), layer.casts) for layer in float8.converted]
    assert counts == [("blocks.0.0", 32, 2), ("blocks.1.0", 32, 2)]
    assert [(layer.name, layer.why) for layer in float8.kept] == [("head", "output")]
    of_inputs_and_weights, of_gradients = 2 * 4, 2 * 2
    if mode == "fp8_tensorwise":  # gradients are rounded to the wider format
        assert float8.casts == {"float8_e4m3fn": of_inputs_and_weights, "float8_e5m2": of_gradients}
    else:
        assert float8.casts == {"float8_e4m3fn": of_inputs_and_weights + of_gradients}
    again = traced(precision, net(Checkpointed), inputs)
    assert [num_rows(layer) for layer in again.float8.converted] == [32, 32], "recomputed rows count once"
    assert contradictions(precision.config, proof) == contradictions(precision.config, again) == []


@pytest.mark.parametrize(("mode", "shape"), [(FP8[1], (40, 32)), (FP8[0], (5, 7, 32))])
def test_rows_are_padded_to_a_multiple_of_16(mode, shape):
    """With zeros, which change no value."""
    inputs, rows, precision = torch.randn(shape), math.prod(shape[:-1]), Precision(mode, "cpu")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    precision.convert(model)
    with torch.no_grad(), precision.autocast():
        outputs = model(inputs)
    proof = traced(precision, model, inputs)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    assert outputs.shape == (*shape[:-1], 10)
    assert [num_rows(layer) for layer in proof.float8.converted] == [-(-rows // 16) * 16] * 2
    model.zero_grad()
    with precision.autocast():
        found = model(torch.cat([inputs.reshape(rows, 32), torch.zeros(-rows % 16, 32)]))[:rows]
    found.float().square().mean().backward()
    assert torch.equal(outputs.reshape(rows, 10), found.detach())
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-2, atol=1e-4)


def test_layers_that_do_not_multiply_in_float8_contradict(monkeypatch):
    def found(proof):
        return contradictions(precision.config, proof)

    precision, inputs = Precision("fp8_tensorwise", "cpu"), torch.randn(24, 32)
    model = precision.convert(net())
    unused, proof, real = (traced(precision, model, inputs) for _ in range(3))
    unused.float8.converted[1].flops.clear()
    assert "converted to float8 and not called in the traced step: blocks.1.0" in found(unused)
    del proof.float8.casts["float8_e5m2"]
    assert "backward of the float8 layers did not compute in float8" in found(proof)
    in_another_dtype = "converted to float8 and computed in another dtype: blocks.0.0, blocks.1.0"
    real.float8.emulated = None  # as on a device with float8 products, of which there were none here
    assert in_another_dtype in found(real)
    linear = type(model.blocks[0][0])
    monkeypatch.setattr(linear, "forward", lambda self, x: F.linear(x, self.weight.bfloat16()))
    assert in_another_dtype in found(traced(precision, model, inputs))


def test_devices_without_the_kernels_emulate():
    for capability, emulated in (((8, 0), FP8), ((8, 9), ("fp8_rowwise",)), ((9, 0), ()), (None, FP8)):
        device = Namespace(name="a device", capability=capability)
        assert tuple(mode for mode in FP8 if Float8.why_emulated(PRECISION_MODES[mode], device)) == emulated


def test_models_and_settings_that_do_not_fit_are_refused(monkeypatch):
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(64, 16))
    with pytest.raises(ValueError, match=r"^no layer of the model multiplies in float8: of its 1 linear layers none"):
        Precision("fp8_tensorwise", "cpu").convert(model)
    assert "it has no linear layer" in Float8.misfit(PRECISION_MODES["fp8_tensorwise"], nn.Conv2d(1, 16, 3))
    for changed in ({"autocast": False}, {"dtype": "float16"}, {"parameters": "bfloat16"}):
        with pytest.raises(ValueError, match="computes under bfloat16 autocast with parameters in float32"):
            Precision(replace(PRECISION_MODES["fp8_rowwise"], **changed), "cpu")
    monkeypatch.setattr(torchao_import_module, "find_spec", lambda _: None)
    with pytest.raises(MissingTorchaoError, match=r"^precision=fp8_rowwise needs .*: pip install -e '\.\[modes\]'$"):
        Precision("fp8_rowwise", "cpu").convert(net())


@pytest.mark.nightly
def test_torchao_is_imported_silently_and_only_where_needed():
    code = """
import sys; from ampsweep.precision import Precision; from torch import nn
for mode in ("amp_bf16", "fp8_tensorwise"):
    Precision(mode, "cpu").convert(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)))
    print("torchao" in sys.modules)"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("False\nTrue\n", "")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs float8 kernels"
)
@pytest.mark.parametrize("mode", FP8)
def test_a_gpu_with_float8_kernels_multiplies_in_float8(mode):
    for rows in (32, 40):
        precision = Precision(mode, "cuda")
        precision.prove()
        proof = traced(precision, net(), torch.randn(rows, 32, device="cuda"))
        assert precision.emulated is None
        assert proof.float8.arithmetic == "rounded"
        assert contradictions(precision.config, proof) == []
