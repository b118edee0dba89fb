"""Modules kept in float32 under autocast compute as in a hand-written subregion, however they are called."""

import copy
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, replace

import pytest
import torch
from devices import CPU_AND_CUDA
from torch import nn
from torch.utils.checkpoint import checkpoint
from traced import traced

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.fp32_modules import in_float32


def precision_of(mode, *patterns, device="cpu", **changes):
    return Precision(replace(PRECISION_MODES[mode], fp32_modules=list(patterns), **changes), device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def gradients(precision, model, forward=None):
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(7))
    with precision.autocast():
        outputs = (forward or model)(inputs)
        loss = outputs.float().square().mean()
    loss.backward()
    return outputs.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def test_patterns_without_a_module_name_the_modules():
    for mode in ("fp32", "amp_bf16"):
        with pytest.raises(ValueError, match=r"precision\.fp32_modules=\[haed\]: no module .*; there are body, head, "):
            precision_of(mode, "head", "haed").convert(Net())


@dataclass(frozen=True)
class Output:
    hidden: torch.Tensor
    size: int


def test_half_inputs_are_cast_wherever_they_are():
    half, point = torch.ones(2, dtype=torch.bfloat16), namedtuple("Point", ("x", "name"))
    given = [half, (half.half(), [half]), {"a": half}, OrderedDict(b=half), point(half, "p"), Output(half, 3)]
    cast = in_float32(given)
    tensors = [cast[0], cast[1][0], cast[1][1][0], cast[2]["a"], cast[3]["b"], cast[4].x, cast[5].hidden]
    assert all(tensor.dtype == torch.float32 for tensor in tensors)
    assert [type(value) for value in cast] == [type(value) for value in given]
    assert (cast[4].name, cast[5].size) == ("p", 3)
    assert given[2]["a"] is half, "the caller's values are not changed"
    kept = [torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.int64), None, {"k": [1]}]
    assert in_float32(kept) is kept


class Product(nn.Linear):
    """Returns its product and the dtypes of its inputs."""

    def forward(self, x, *, more=None):
        return super().forward(x), x.dtype, None if more is None else more["m"].dtype


@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_modules_within_a_matched_module_are_covered(device):
    inside = nn.ModuleDict({"list": nn.ModuleList([Product(8, 8)]), "other": Product(8, 8)})
    model = nn.ModuleDict({"inside": inside, "outside": Product(8, 8)})
    precision, full = precision_of("amp_bf16", "inside", device=device), torch.float32
    precision.convert(model)
    with precision.autocast():
        half, *seen = model["outside"](torch.ones(2, 8, device=device))
        assert (half.dtype, *seen) == (torch.bfloat16, full, None)
        product, *seen = inside["list"][0].forward(half, more={"m": half})
        assert (product.dtype, *seen) == (full, full, full), "through forward itself, too"
        product, *seen = inside["other"](half)
        assert (product.dtype, *seen) == (full, full, None)
    net = Net()
    net.alias = net.head
    precision_of("amp_bf16", "alias").convert(net)
    assert "forward" in vars(net.head), "a module is found by any of its names"


@pytest.mark.parametrize(("pattern", "reentrant"), [("head", False), ("body", True)])
def test_activation_checkpointing_recomputes_in_float32(pattern, reentrant):
    precision = precision_of("amp_bf16", pattern)
    model = precision.convert(Net())

    def recomputed(inputs):
        return checkpoint(model, inputs.requires_grad_(), use_reentrant=reentrant)

    outputs, found = gradients(precision, model, recomputed)
    expected, others = gradients(precision, precision.convert(Net()))
    assert outputs.dtype == expected.dtype
    assert all(map(torch.equal, (outputs, *found), (expected, *others)))


def test_compiled_code_keeps_them_in_float32():
    precision = precision_of("amp_bf16", "head")
    model = Net()
    # As the trainer does, before the model is converted; a break in the graph would be an error.
    model.compile(fullgraph=True, backend="aot_eager")
    (outputs, found), expected = (gradients(precision, precision.convert(net)) for net in (model, Net()))
    assert torch.equal(outputs, expected[0])
    torch.testing.assert_close(found, expected[1], rtol=0.01, atol=0.001)  # compiled code rounds less often


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_is_covered_by_itself(duplicate):
    precision = precision_of("amp_bf16", "head")
    model = precision.convert(Net())
    assert [*model.state_dict()] == [*Net().state_dict()]
    copied = duplicate(model)
    nn.init.zeros_(copied.head.weight)
    nn.init.zeros_(copied.head.bias)
    outputs = gradients(precision, copied)[0]
    assert (torch.count_nonzero(outputs), outputs.dtype) == (0, torch.float32), "it uses its own weights"
    assert torch.count_nonzero(gradients(precision, model)[0]) > 0


def test_the_last_precision_decides():
    model = precision_of("amp_bf16", "head").convert(Net())
    other = precision_of("amp_bf16", "body")
    assert gradients(other, other.convert(model))[0].dtype == torch.bfloat16
    assert "forward" not in vars(model.head)
    with torch.no_grad(), other.eval_autocast("autocast"):
        assert model.body(torch.ones(1, 8)).dtype == torch.float32
        assert model(torch.ones(1, 8)).dtype == torch.bfloat16, "evaluation keeps them in float32, too"
    for without in (Precision("amp_bf16", "cpu"), precision_of("fp32", "head")):
        other.convert(model)
        without.convert(model)
        assert all("forward" not in vars(module) for module in model.modules())

    model = Net()
    model.head.forward = own = lambda hidden: hidden.sum(-1)
    precision_of("amp_bf16", "head").convert(model)
    assert model.head(torch.ones(1, 16, dtype=torch.bfloat16)).dtype == torch.float32
    Precision("amp_bf16", "cpu").convert(model)
    assert model.head.forward is own


def test_the_proof_counts_their_operations_apart():
    precision = precision_of("amp_bf16", "head")
    proof = traced(precision, Net(), torch.ones(5, 8))
    assert proof.fp32_module_flops == {"float32": 2 * 5 * 16 * 4}
    assert proof.forward_flops == {"bfloat16": 2 * 5 * 8 * 16, "float32": 2 * 5 * 16 * 4}
    assert contradictions(precision.config, proof) == []
    for most in (precision_of("amp_bf16", "body"), precision_of("amp_bf16", "*")):
        proof = traced(most, Net(), torch.ones(5, 8))
        assert proof.flops["float32"] > proof.flops.get("bfloat16", 0)
        assert contradictions(most.config, proof) == []


def test_modules_that_do_not_compute_in_float32_contradict():
    precision = precision_of("amp_bf16", "head")
    stubborn = Net()
    stubborn.head.forward = torch.autocast("cpu", torch.bfloat16)(stubborn.head.forward)
    (found,) = contradictions(precision.config, traced(precision, stubborn, torch.ones(5, 8)))
    assert found.startswith("100% of the")
    assert "within precision.fp32_modules" in found
    precision.autocast = lambda: torch.autocast("cpu", enabled=False)
    found = contradictions(precision.config, traced(precision, Net(), torch.ones(5, 8)))
    assert found == ["only 0% of the matmul and convolution operations ran in bfloat16, in which the mode computes"]
    idle = precision_of("amp_bf16", "*.out_proj")  # whose weights are used without a call of it
    model = nn.TransformerEncoderLayer(8, 2, 16)
    found = contradictions(idle.config, traced(idle, model, torch.ones(3, 2, 8, requires_grad=True)))
    assert any("[*.out_proj] was called" in sentence for sentence in found)
