"""Modules kept in float32 under autocast: they compute as in a hand-written subregion, however they are called."""

import copy
import pickle
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from ampsweep.record.parts import ModeProof

AMP = ("amp_bf16", "amp_fp16")
DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


def precision_of(mode, *patterns, device="cpu", **changes):
    return Precision(replace(PRECISION_MODES[mode], fp32_modules=list(patterns), **changes), device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class ByHand(Net):
    """The same with the subregion that torch's documentation shows."""

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
    precision = precision_of(mode, "head", device=device)
    model, by_hand = precision.convert(seeded(Net)), seeded(ByHand).to(device)
    found, expected = gradients(precision, model, device), gradients(precision, by_hand, device)
    assert_same(found, expected)
    assert found[0].dtype == torch.float32


def test_without_it_the_module_would_compute_otherwise():
    precision, plain = precision_of("amp_bf16", "head"), Precision("amp_bf16", "cpu")
    inside, outside = gradients(precision, precision.convert(seeded(Net))), gradients(plain, plain.convert(seeded(Net)))
    assert outside[0].dtype == torch.bfloat16
    assert not torch.equal(inside[0], outside[0].float())


@pytest.mark.parametrize("mode", ["fp32", "tf32", "amp_bf16"])
def test_a_mode_without_islands_wraps_nothing(mode):
    precision = precision_of("fp32" if mode == "tf32" else mode, *(["head"] if mode != "amp_bf16" else []))
    model = precision.convert(Net())
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("mode", ["fp32", *AMP])
def test_a_pattern_without_a_module_names_those_that_there_are(mode):
    with pytest.raises(ValueError, match=r"precision\.fp32_modules=\[haed\]: no module .*; there are body, head, "):
        precision_of(mode, "head", "haed").convert(Net())


@pytest.mark.parametrize("mode", ["pure_bf16", "pure_fp16"])
def test_parameters_of_another_dtype_are_refused(mode):
    with pytest.raises(ValueError, match="fp32_modules needs parameters in float32, not in"):
        precision_of(mode, "head")


class Point(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass(frozen=True)
class Output:
    hidden: torch.Tensor
    size: int


def test_half_inputs_are_cast_wherever_they_are():
    half = torch.ones(2, dtype=torch.bfloat16)
    given = [half, (half.half(), [half]), {"a": half}, OrderedDict(b=half), Point(half, "p"), Output(half, 3)]
    cast = in_float32(given)
    tensors = [cast[0], cast[1][0], cast[1][1][0], cast[2]["a"], cast[3]["b"], cast[4].x, cast[5].hidden]
    assert all(one.dtype == torch.float32 for one in tensors)
    assert [type(one) for one in cast] == [type(one) for one in given]
    assert (cast[4].name, cast[5].size) == ("p", 3)
    assert given[2]["a"] is half, "what was passed stays as it was"


def test_what_autocast_leaves_alone_stays_the_same_object():
    kept = [
        torch.ones(2),
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.int64),
        None,
        "text",
        {"k": [1]},
    ]
    assert in_float32(kept) is kept


class Recorder(nn.Module):
    """Remembers the dtypes that it was called with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        self.seen = []

    def forward(self, x, *, more=None):
        product = x @ self.weight
        self.seen.append((x.dtype, None if more is None else more["m"].dtype, product.dtype))
        return product


class Holder(nn.Module):
    """Calls modules in every way that there is."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"list": nn.ModuleList([Recorder()]), "other": Recorder()})
        self.outside = Recorder()

    def forward(self, inputs):
        hidden = self.outside(inputs)
        hidden = self.parts["list"][0].forward(hidden, more={"m": hidden})
        return self.parts["other"](hidden.bfloat16())


def test_modules_within_a_matched_one_are_covered():
    precision = precision_of("amp_bf16", "parts")
    model = precision.convert(Holder())
    with precision.autocast():
        model(torch.ones(2, 8))
    full, half = torch.float32, torch.bfloat16
    assert model.outside.seen == [(full, None, half)]
    assert model.parts["list"][0].seen == [(full, full, full)], "through forward itself, too"
    assert model.parts["other"].seen == [(full, None, full)]


def test_a_module_with_two_names_is_found_by_either():
    model = Net()
    model.alias = model.head
    precision = precision_of("amp_bf16", "alias")
    assert precision.convert(model)(torch.ones(1, 8)).dtype == torch.float32
    assert "forward" in vars(model.head)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        return self.head(hidden @ torch.ones(4, 4)), hidden @ self.embedding.weight.T


def test_tied_weights_are_half_elsewhere():
    precision = precision_of("amp_bf16", "head")
    model = precision.convert(Tied())
    with precision.autocast():
        inside, elsewhere = model(torch.arange(8))
    assert (inside.dtype, elsewhere.dtype) == (torch.float32, torch.bfloat16)
    (inside.sum() + elsewhere.sum()).backward()
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("patterns", [["head"], ["body"]])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_recomputes_in_float32(patterns, reentrant):
    precision = precision_of("amp_bf16", *patterns)
    model = precision.convert(seeded(Net))

    def recomputed(inputs):
        return checkpoint(model, inputs.requires_grad_(), use_reentrant=reentrant)

    assert_same(gradients(precision, model, forward=recomputed), gradients(precision, precision.convert(seeded(Net))))


@pytest.mark.parametrize("mode", AMP)
def test_compiled_code_has_islands_too(mode):
    precision = precision_of(mode, "head")
    model = seeded(Net)
    # As the trainer does, before the model is converted; a break in the graph would be an error.
    model.compile(fullgraph=True, backend="aot_eager")
    (outputs, found), expected = (gradients(precision, precision.convert(one)) for one in (model, seeded(Net)))
    assert torch.equal(outputs, expected[0])
    torch.testing.assert_close(found, expected[1], rtol=0.01, atol=0.001)  # compiled code rounds less often


def test_names_in_a_state_dict_stay():
    plain, covered = Net(), precision_of("amp_bf16", "*").convert(Net())
    assert [*covered.state_dict()] == [*plain.state_dict()]
    covered.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_is_covered_by_itself(duplicate):
    precision = precision_of("amp_bf16", "head")
    model = precision.convert(seeded(Net))
    copied = duplicate(model)
    with torch.no_grad():
        copied.head.weight.zero_()
        copied.head.bias.zero_()
    assert torch.count_nonzero(gradients(precision, copied)[0]) == 0, "it uses its own weights"
    assert torch.count_nonzero(gradients(precision, model)[0]) > 0
    assert gradients(precision, copied)[0].dtype == torch.float32


def test_the_last_precision_decides():
    model = precision_of("amp_bf16", "head").convert(Net())
    other = precision_of("amp_bf16", "body")
    assert gradients(other, other.convert(model))[0].dtype == torch.bfloat16
    assert "forward" not in vars(model.head)
    Precision("amp_bf16", "cpu").convert(model)
    assert all("forward" not in vars(module) for module in model.modules())


def test_a_forward_set_by_somebody_else_is_kept():
    model = Net()
    model.head.forward = lambda hidden: hidden.sum(-1)
    own = model.head.forward
    precision_of("amp_bf16", "head").convert(model)
    assert model.head(torch.ones(1, 16, dtype=torch.bfloat16)).dtype == torch.float32
    Precision("amp_bf16", "cpu").convert(model)
    assert model.head.forward is own


@pytest.mark.parametrize("how", ["full", "autocast"])
def test_evaluation_has_the_islands_either_way(how):
    precision = precision_of("amp_bf16", "head", eval=how)
    model = precision.convert(Net())
    with torch.no_grad(), precision.eval_autocast():
        hidden, outputs = model.body(torch.ones(1, 8)), model(torch.ones(1, 8))
    assert (hidden.dtype, outputs.dtype) == (DTYPES["amp_bf16" if how == "autocast" else "fp32"], torch.float32)


def traced(precision, model, inputs):
    with trace_step(model, region=precision.region) as trace:
        with precision.autocast():
            loss = model(inputs).float().mean()
        loss.backward()
    step = trace.result
    proof = precision.prove_step(step)
    return proof | ModeProof(flops=step.flops)


def test_the_proof_counts_their_operations_apart():
    precision = precision_of("amp_bf16", "head")
    proof = traced(precision, precision.convert(Net()), torch.ones(5, 8))
    assert proof.fp32_module_flops == {"float32": 2 * 5 * 16 * 4}
    assert proof.forward_flops == {"bfloat16": 2 * 5 * 8 * 16, "float32": 2 * 5 * 16 * 4}
    assert contradictions(precision.config, proof) == []


def test_most_of_a_model_may_be_in_float32():
    precision = precision_of("amp_bf16", "body")
    model = precision.convert(Net())
    proof = traced(precision, model, torch.ones(5, 8))
    assert proof.flops["float32"] > proof.flops["bfloat16"]
    assert contradictions(precision.config, proof) == []
    whole = precision_of("amp_bf16", "*")
    assert contradictions(whole.config, traced(whole, whole.convert(Net()), torch.ones(5, 8))) == []


def test_a_mode_that_is_not_kept_outside_of_them_contradicts():
    precision = precision_of("amp_bf16", "head")
    model = precision.convert(Net())
    precision.autocast = lambda: torch.autocast("cpu", enabled=False)
    found = contradictions(precision.config, traced(precision, model, torch.ones(5, 8)))
    assert found == ["only 0% of the matmul and convolution operations ran in bfloat16, in which the mode computes"]


class Stubborn(Net):
    """Its head switches autocast on again."""

    def __init__(self):
        super().__init__()
        self.head.forward = torch.autocast("cpu", torch.bfloat16)(self.head.forward)


def test_a_module_that_computes_in_half_all_the_same_contradicts():
    precision = precision_of("amp_bf16", "head")
    found = contradictions(precision.config, traced(precision, precision.convert(Stubborn()), torch.ones(5, 8)))
    assert [sentence.partition(" of the")[0] for sentence in found] == ["100%"]
    assert "within precision.fp32_modules" in found[0]


def test_a_module_that_is_never_called_contradicts():
    model = nn.MultiheadAttention(8, 2)  # it uses the weights of its out_proj by itself

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = model

        def forward(self, x):
            return self.attention(x, x, x)[0]

    precision = precision_of("amp_bf16", "*.out_proj")
    found = contradictions(
        precision.config, traced(precision, precision.convert(Attention()), torch.ones(3, 2, 8, requires_grad=True))
    )
    assert any("[*.out_proj] was called" in sentence for sentence in found)
