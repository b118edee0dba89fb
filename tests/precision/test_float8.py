"""Modes whose linear layers multiply in float8, by torchao's conversion, here emulated on the CPU."""

import copy
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.observe.step import trace_step
from ampsweep.precision import Precision
from ampsweep.precision import torchao_import as torchao_import_module
from ampsweep.precision.float8 import Float8
from ampsweep.precision.float8_layers import plan_layers
from ampsweep.precision.precision import misfit
from ampsweep.precision.support import Abilities
from ampsweep.precision.torchao_import import MissingTorchaoError, import_torchao
from ampsweep.record.parts import ModeProof

FP8 = ("fp8_tensorwise", "fp8_rowwise")


def net():
    torch.manual_seed(0)
    return MLP(32, 64, 10, 3)


def losses_of(step, num_steps=4):
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(24, 32, generator=generator), torch.randint(10, (24,), generator=generator))] * num_steps
    return [step(*batch) for batch in batches]


def trained_by_us(mode):
    precision = Precision(mode, "cpu")
    model = precision.convert(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(inputs, targets):
        with precision.autocast():
            loss = F.cross_entropy(model(inputs), targets)
        precision.backward(loss)
        precision.step(optimizer)
        optimizer.zero_grad()
        return loss.item()

    return losses_of(step)


def trained_by_hand(recipe):
    """A loop as anyone writes it with torchao, which casts inputs to autocast's dtype on CUDA only."""
    torchao = import_torchao("torchao.float8", "the test")
    model = net()
    config = replace(torchao.Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    torchao.convert_to_float8_training(model, module_filter_fn=lambda _, name: name != "head", config=config)
    for block in model.blocks:
        block[0].register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(inputs, targets):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return losses_of(step)


@pytest.mark.parametrize("mode", FP8)
def test_a_hand_written_loop_has_bitwise_the_same_losses(mode):
    ours = trained_by_us(mode)
    assert ours == trained_by_hand(mode.removeprefix("fp8_"))
    assert ours != trained_by_us("amp_bf16")


def test_each_linear_layer_without_a_reason_is_converted():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.ModuleDict(
        {
            "stem": nn.Conv2d(3, 32, 3),
            "body": nn.Linear(32, 32),
            "odd": nn.Linear(32, 24),
            "own": Doubled(32, 32),
            "watched": nn.Linear(32, 32),
            "precise": nn.Sequential(nn.Linear(32, 32)),
            "embedding": nn.Embedding(48, 32),
            "tied": nn.Linear(32, 48, bias=False),
            "norm": nn.LayerNorm(32),
            "head": nn.Linear(32, 16),
        }
    )
    model["watched"].register_forward_hook(lambda *_: None)
    model["tied"].weight = model["embedding"].weight
    plan = plan_layers(model, ["precise"])
    assert [*plan.converted] == ["body"]
    assert {layer.name: layer.why for layer in plan.kept} == {
        "stem": "no_linear",
        "odd": "size",
        "own": "subclass",
        "watched": "changed",
        "precise.0": "fp32_modules",
        "embedding": "no_linear",
        "tied": "output",
        "head": "output",
    }


def test_the_last_layer_of_the_last_block_is_no_output_layer():
    assert not [layer for layer in plan_layers(GPT(48, 16, 2, 32, 2), []).kept if layer.why == "output"]
    plan = plan_layers(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), [])
    assert [*plan.converted] == ["0"]


def test_parameters_keep_their_identity_and_their_names():
    model = net()
    before, names = [*model.parameters()], [*model.state_dict()]
    Precision("fp8_rowwise", "cpu").convert(model)
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    assert [*model.state_dict()] == names


@pytest.mark.parametrize("mode", FP8)
def test_another_mode_undoes_the_conversion(mode):
    model, precision = net(), Precision(mode, "cpu")
    for _ in range(2):
        precision.convert(model)
    assert type(model.blocks[0][0]).__name__ == "Float8Linear"
    Precision("amp_bf16", "cpu").convert(model)
    assert {type(one) for one in model.modules() if isinstance(one, nn.Linear)} == {nn.Linear}
    assert all("forward" not in vars(one) for one in model.modules())


def test_without_autocast_the_layers_compute_in_float32():
    model, precision, inputs = net(), Precision("fp8_tensorwise", "cpu"), torch.randn(4, 32)
    expected = model(inputs)
    precision.convert(model)
    with torch.no_grad(), precision.eval_autocast():
        assert torch.equal(model(inputs), expected)
    with torch.no_grad(), precision.eval_autocast("autocast"):
        assert not torch.equal(model(inputs), expected)


def test_a_copy_of_the_model_computes_with_its_own_weights():
    precision = Precision("fp8_tensorwise", "cpu")
    model = precision.convert(net())
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.blocks[0][0].weight.zero_()
    with precision.autocast():
        assert not torch.equal(copied(torch.ones(1, 32)), model(torch.ones(1, 32)))


def traced(precision, model, inputs):
    with trace_step(model, region=precision.region) as trace:
        with precision.autocast():
            loss = model(inputs).float().square().mean()
        loss.backward()
    step = trace.result
    return precision.prove_step(step) | ModeProof(flops=step.flops, outputs=step.outputs)


def num_rows(layer):
    """The rows that a layer multiplied in the forward pass."""
    return sum(layer.flops.values()) // (2 * layer.in_features * layer.out_features)


@pytest.mark.parametrize("mode", FP8)
def test_an_emulated_step_proves_each_layer(mode):
    precision = Precision(mode, "cpu")
    precision.prove()
    proof = traced(precision, precision.convert(net()), torch.randn(32, 32))
    float8 = proof.float8
    assert float8.arithmetic == "rounded"
    assert "cpu" in float8.emulated
    assert [(one.name, num_rows(one), one.casts) for one in float8.converted] == [
        ("blocks.0.0", 32, 2),
        ("blocks.1.0", 32, 2),
    ]
    assert [(one.name, one.why) for one in float8.kept] == [("head", "output")]
    assert contradictions(precision.config, proof) == []


@pytest.mark.parametrize("shape", [(1, 32), (40, 32), (5, 7, 32)])
@pytest.mark.parametrize("mode", FP8)
def test_rows_that_the_kernels_do_not_take_are_filled_up(mode, shape):
    """With zeros: a multiple of 16 rows is multiplied, and every value is that of the rows that there are."""
    torch.manual_seed(0)
    inputs, rows = torch.randn(shape), math.prod(shape[:-1])
    precision = Precision(mode, "cpu")
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = precision.convert(model)
    with torch.no_grad(), precision.autocast():
        outputs = model(inputs)
    proof = traced(precision, model, inputs)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    assert outputs.shape == (*shape[:-1], 10)
    assert [num_rows(one) for one in proof.float8.converted] == [-(-rows // 16) * 16] * 2

    model.zero_grad()
    filled = torch.cat([inputs.reshape(rows, 32), torch.zeros(-rows % 16, 32)])
    with precision.autocast():
        found = model(filled)[:rows]
    found.float().square().mean().backward()
    assert torch.equal(outputs.reshape(rows, 10), found.detach())
    for one, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-2, atol=1e-4)


def test_tensorwise_gradients_are_rounded_to_the_wider_format():
    casts = {}
    for mode in FP8:
        precision = Precision(mode, "cpu")
        casts[mode] = traced(precision, precision.convert(net()), torch.randn(24, 32)).float8.casts
    of_inputs_and_weights, of_gradients = 2 * 4, 2 * 2
    assert casts["fp8_tensorwise"] == {"float8_e4m3fn": of_inputs_and_weights, "float8_e5m2": of_gradients}
    assert casts["fp8_rowwise"] == {"float8_e4m3fn": of_inputs_and_weights + of_gradients}


def test_a_checkpointed_layer_is_proved_too():
    class Checkpointed(MLP):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    precision = Precision("fp8_tensorwise", "cpu")
    proof = traced(precision, precision.convert(Checkpointed(32, 64, 10, 3)), torch.randn(32, 32))
    assert [num_rows(one) for one in proof.float8.converted] == [32, 32]
    assert contradictions(precision.config, proof) == []


def test_a_layer_that_is_not_called_contradicts_the_mode():
    class Unused(MLP):
        def forward(self, x):
            return self.head(F.linear(self.blocks[0](x), self.blocks[1][0].weight))

    precision = Precision("fp8_tensorwise", "cpu")
    proof = traced(precision, precision.convert(Unused(32, 64, 10, 3)), torch.randn(24, 32))
    assert "converted to float8 and not called in the traced step: blocks.1.0" in contradictions(
        precision.config, proof
    )


def test_a_layer_that_computes_otherwise_contradicts_the_mode(monkeypatch):
    precision = Precision("fp8_tensorwise", "cpu")
    model = precision.convert(net())
    linear = type(model.blocks[0][0])
    monkeypatch.setattr(linear, "forward", lambda self, x: F.linear(x, self.weight.bfloat16()))
    found = contradictions(precision.config, traced(precision, model, torch.randn(24, 32)))
    assert "converted to float8 and computed in another dtype: blocks.0.0, blocks.1.0" in found


def test_a_backward_pass_in_another_dtype_contradicts_the_mode():
    precision = Precision("fp8_tensorwise", "cpu")
    proof = traced(precision, precision.convert(net()), torch.randn(24, 32))
    del proof.float8.casts["float8_e5m2"]
    assert "backward of the float8 layers did not compute in float8" in contradictions(precision.config, proof)


def test_real_float8_is_proved_by_its_products():
    precision = Precision("fp8_rowwise", "cpu")
    proof = traced(precision, precision.convert(net()), torch.randn(24, 32))
    proof.float8.emulated = None  # as on a device that multiplies float8, which this one has not done
    assert "converted to float8 and computed in another dtype: blocks.0.0, blocks.1.0" in contradictions(
        precision.config, proof
    )


@pytest.mark.parametrize(
    ("capability", "emulated"), [((8, 0), FP8), ((8, 9), ("fp8_rowwise",)), ((9, 0), ()), (None, FP8)]
)
def test_devices_without_the_kernels_emulate(capability, emulated):
    device = Abilities(
        "a device", tf32=True, bfloat16=True, autocast=True, matmul_bits=lambda _: 23, capability=capability
    )
    settings = [PRECISION_MODES[mode] for mode in FP8]
    assert tuple(one.mode for one in settings if Float8.why_emulated(one, device)) == emulated


def test_a_model_without_a_layer_to_convert_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(64, 16))
    reason = misfit(PRECISION_MODES["fp8_tensorwise"], model)
    assert reason.startswith("no layer of the model multiplies in float8: of its 1 linear layers none")
    with pytest.raises(ValueError, match="no layer of the model multiplies in float8"):
        Precision("fp8_tensorwise", "cpu").convert(model)
    assert "it has no linear layer" in misfit(PRECISION_MODES["fp8_tensorwise"], nn.Conv2d(1, 16, 3))


@pytest.mark.parametrize("changed", [{"autocast": False}, {"dtype": "float16"}, {"parameters": "bfloat16"}])
def test_settings_that_are_not_float8s_are_refused(changed):
    with pytest.raises(ValueError, match="computes under bfloat16 autocast with parameters in float32"):
        Precision(replace(PRECISION_MODES["fp8_rowwise"], **changed), "cpu")


def test_a_missing_torchao_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torchao_import_module, "find_spec", lambda _: None)
    with pytest.raises(MissingTorchaoError, match=r"^precision=fp8_rowwise needs .*: pip install -e '\.\[modes\]'$"):
        Precision("fp8_rowwise", "cpu").convert(net())


def test_torchao_is_imported_silently_and_only_where_needed():
    code = (
        "import sys, torch; from ampsweep.precision import Precision; from torch import nn\n"
        "for mode in ('amp_bf16', 'fp8_tensorwise'):\n"
        "    Precision(mode, 'cpu').convert(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)))\n"
        "    print('torchao' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("False\nTrue\n", "")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs float8 kernels"
)
@pytest.mark.parametrize("rows", [32, 40])
@pytest.mark.parametrize("mode", FP8)
def test_a_gpu_with_float8_kernels_multiplies_in_float8(mode, rows):
    precision = Precision(mode, "cuda")
    precision.prove()
    model = precision.convert(net())
    proof = traced(precision, model, torch.randn(rows, 32, device="cuda"))
    assert precision.emulated is None
    assert proof.float8.arithmetic == "rounded"
    assert contradictions(precision.config, proof) == []
