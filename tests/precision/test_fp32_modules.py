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

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.observe.step import trace_step
from ampsweep.precision import Precision
from ampsweep.precision.fp32_modules import in_float32
from ampsweep.record.sections import ModeProof

AMP = ("amp_bf16", "amp_fp16")


def precision_of(mode, *patterns, device="cpu", **changes):
    return Precision(replace(PRECISION_MODES[mode], fp32_modules=list(patterns), **changes), device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class ByHand(Net):
    """With the subregion that torch's documentation shows."""

    def forward(self, inputs):
        hidden = self.body(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            return self.head(hidden.float())


def seeded(make):
    torch.manual_seed(3)
    return make()


def gradients(precision, model, device="cpu", forward=None):
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(7)).to(device)
    with precision.autocast():
        outputs = (forward or model)(inputs)
        loss = outputs.float().square().mean()
    loss.backward()
    return outputs.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def assert_same(found, expected):
    assert found[0].dtype == expected[0].dtype
    assert torch.equal(found[0], expected[0])
    assert all(map(torch.equal, found[1], expected[1]))


@pytest.mark.parametrize("device", CPU_AND_CUDA)
@pytest.mark.parametrize("mode", ["fp32", *AMP])
def test_it_computes_as_a_subregion_written_by_hand(mode, device):
    precision, plain = precision_of(mode, "head", device=device), Precision(mode, device)
    model, by_hand = precision.convert(seeded(Net)), seeded(ByHand).to(device)
    found, expected = gradients(precision, model, device), gradients(precision, by_hand, device)
    assert_same(found, expected)
    assert found[0].dtype == torch.float32
    outside = gradients(plain, plain.convert(seeded(Net)), device)
    assert torch.equal(found[0], outside[0].float()) == (mode == "fp32")


def test_patterns_without_a_module_name_the_modules():
    for mode in ("fp32", *AMP):
        with pytest.raises(ValueError, match=r"precision\.fp32_modules=\[haed\]: no module .*; there are body, head, "):
            precision_of(mode, "head", "haed").convert(Net())
    for mode in ("pure_bf16", "pure_fp16"):
        with pytest.raises(ValueError, match="fp32_modules needs parameters in float32, not in"):
            precision_of(mode, "head")


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


class Recorder(nn.Module):
    """Remembers the dtypes of its inputs and of its product."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(8, 8)), []

    def forward(self, x, *, more=None):
        product = x @ self.weight
        self.seen.append((x.dtype, None if more is None else more["m"].dtype, product.dtype))
        return product


def test_modules_within_a_matched_module_are_covered():
    inside = nn.ModuleDict({"list": nn.ModuleList([Recorder()]), "other": Recorder()})
    model = nn.ModuleDict({"inside": inside, "outside": Recorder()})
    precision = precision_of("amp_bf16", "inside")
    precision.convert(model)
    with precision.autocast():
        hidden = model["outside"](torch.ones(2, 8))
        hidden = inside["list"][0].forward(hidden, more={"m": hidden})
        inside["other"](hidden.bfloat16())
    full, half = torch.float32, torch.bfloat16
    assert model["outside"].seen == [(full, None, half)]
    assert inside["list"][0].seen == [(full, full, full)], "through forward itself, too"
    assert inside["other"].seen == [(full, None, full)]
    net = Net()
    net.alias = net.head
    precision_of("amp_bf16", "alias").convert(net)
    assert "forward" in vars(net.head), "a module is found by any of its names"


@pytest.mark.parametrize(("pattern", "reentrant"), [("head", False), ("body", True)])
def test_activation_checkpointing_recomputes_in_float32(pattern, reentrant):
    precision = precision_of("amp_bf16", pattern)
    model = precision.convert(seeded(Net))

    def recomputed(inputs):
        return checkpoint(model, inputs.requires_grad_(), use_reentrant=reentrant)

    assert_same(gradients(precision, model, forward=recomputed), gradients(precision, precision.convert(seeded(Net))))


def test_compiled_code_keeps_them_in_float32():
    precision = precision_of("amp_bf16", "head")
    model = seeded(Net)
    # As the trainer does, before the model is converted; a break in the graph would be an error.
    model.compile(fullgraph=True, backend="aot_eager")
    (outputs, found), expected = (gradients(precision, precision.convert(net)) for net in (model, seeded(Net)))
    assert torch.equal(outputs, expected[0])
    torch.testing.assert_close(found, expected[1], rtol=0.01, atol=0.001)  # compiled code rounds less often


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_is_covered_by_itself(duplicate):
    precision = precision_of("amp_bf16", "head")
    model = precision.convert(seeded(Net))
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


def test_a_forward_set_by_the_user_is_kept():
    model = Net()
    model.head.forward = own = lambda hidden: hidden.sum(-1)
    precision_of("amp_bf16", "head").convert(model)
    assert model.head(torch.ones(1, 16, dtype=torch.bfloat16)).dtype == torch.float32
    Precision("amp_bf16", "cpu").convert(model)
    assert model.head.forward is own


def traced(precision, model, inputs=None):
    model = precision.convert(model)
    with trace_step(model, region=precision.region) as trace:
        with precision.autocast():
            loss = model(torch.ones(5, 8) if inputs is None else inputs).float().mean()
        loss.backward()
    step = trace.result
    return precision.prove_step(step) | ModeProof(flops=step.flops)


def test_the_proof_counts_their_operations_apart():
    precision = precision_of("amp_bf16", "head")
    proof = traced(precision, Net())
    assert proof.fp32_module_flops == {"float32": 2 * 5 * 16 * 4}
    assert proof.forward_flops == {"bfloat16": 2 * 5 * 8 * 16, "float32": 2 * 5 * 16 * 4}
    assert contradictions(precision.config, proof) == []
    for most in (precision_of("amp_bf16", "body"), precision_of("amp_bf16", "*")):
        proof = traced(most, Net())
        assert proof.flops["float32"] > proof.flops.get("bfloat16", 0)
        assert contradictions(most.config, proof) == []


class Attention(nn.Module):
    """Uses the weights of its out_proj without calling it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_modules_that_do_not_compute_in_float32_contradict():
    precision = precision_of("amp_bf16", "head")
    stubborn = Net()
    stubborn.head.forward = torch.autocast("cpu", torch.bfloat16)(stubborn.head.forward)
    (found,) = contradictions(precision.config, traced(precision, stubborn))
    assert found.startswith("100% of the")
    assert "within precision.fp32_modules" in found
    precision.autocast = lambda: torch.autocast("cpu", enabled=False)
    found = contradictions(precision.config, traced(precision, Net()))
    assert found == ["only 0% of the matmul and convolution operations ran in bfloat16, in which the mode computes"]
    idle = precision_of("amp_bf16", "*.out_proj")
    found = contradictions(idle.config, traced(idle, Attention(), torch.ones(3, 2, 8, requires_grad=True)))
    assert any("[*.out_proj] was called" in sentence for sentence in found)
