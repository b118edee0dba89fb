"""What each precision mode does to a model, a forward pass, a backward pass and a step."""

import doctest
import importlib
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from devices import needs_cuda
from torch import nn

from ampsweep.config.modes import PRECISION_MODES, step_dtypes
from ampsweep.precision import Precision

ON_CPU = [mode for mode in PRECISION_MODES if mode != "tf32" and not mode.startswith("fp8")]
"""Modes of which any model will do; float8 takes layers of its own choice, and has tests of its own."""


class Probe(nn.Module):
    """Two layers; remembers the dtype each was computed in."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("shift", torch.ones(1))
        self.seen = []

    def forward(self, x):
        hidden = self.first(x)
        out = self.second(hidden.relu())
        self.seen += [hidden.dtype, out.dtype]
        return out


def probe(precision):
    torch.manual_seed(0)
    return precision.convert(Probe())


def name_of(dtypes):
    (dtype,) = dtypes
    return str(dtype).removeprefix("torch.")


def loss_of(precision, model):
    inputs = torch.linspace(-1, 1, 32).reshape(4, 8).to(precision.parameters_dtype)
    with precision.autocast():
        out = model(inputs)
        return F.mse_loss(out, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("mode", "computed"),
    [
        ("fp32", torch.float32),
        ("amp_fp16", torch.float16),
        ("amp_bf16", torch.bfloat16),
        ("pure_fp16", torch.float16),
        ("pure_bf16", torch.bfloat16),
    ],
)
def test_the_forward_pass_is_computed_in_the_dtype_of_the_mode(mode, computed):
    precision = Precision(mode, "cpu")
    model = probe(precision)
    loss_of(precision, model)
    assert set(model.seen) == {computed}


@pytest.mark.parametrize("mode", ON_CPU)
def test_a_step_has_the_dtypes_that_the_mode_promises(mode):
    precision = Precision(mode, "cpu")
    model = probe(precision)
    optimizer = precision.optimizer(partial(torch.optim.AdamW, fused=True), model.parameters())
    precision.backward(loss_of(precision, model))
    gradients = {parameter.grad.dtype for parameter in model.parameters()}
    precision.unscale_(optimizer)
    precision.step(optimizer)
    precision.update()
    promised = asdict(step_dtypes(PRECISION_MODES[mode]))
    assert promised.pop("reduction") == promised["gradients"], "there is one device here"
    assert promised == {
        "compute": name_of({*model.seen}),
        "parameters": name_of({precision.parameters_dtype, model.shift.dtype, *(p.dtype for p in model.parameters())}),
        "gradients": name_of(gradients),
        "optimizer_state": name_of({state["exp_avg"].dtype for state in optimizer.state.values()}),
    }


@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16"])
def test_the_loss_of_an_autocast_forward_pass_is_float32(mode):
    precision = Precision(mode, "cpu")
    assert loss_of(precision, probe(precision)).dtype == torch.float32


@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16"])
def test_autocast_ends_with_its_context(mode):
    precision = Precision(mode, "cpu")
    with precision.autocast():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == precision.autocast_dtype
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", ["fp32", "pure_bf16", "pure_fp16"])
def test_a_mode_without_autocast_never_turns_it_on(mode):
    with Precision(mode, "cpu").autocast():
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_cache_of_cast_weights_can_be_switched_off(enabled):
    with Precision(replace(PRECISION_MODES["amp_bf16"], cache_enabled=enabled), "cpu").autocast():
        assert torch.is_autocast_cache_enabled() == enabled


@pytest.mark.parametrize(("choice", "autocast"), [("full", False), ("autocast", True)])
def test_evaluation_is_under_autocast_by_choice(choice, autocast):
    with Precision(replace(PRECISION_MODES["amp_bf16"], eval=choice), "cpu").eval_autocast():
        assert torch.is_autocast_enabled("cpu") == autocast


def test_autocast_can_be_switched_off_by_itself():
    precision = Precision(replace(PRECISION_MODES["amp_fp16"], autocast=False), "cpu")
    model = probe(precision)
    loss_of(precision, model)
    assert set(model.seen) == {torch.float32}
    assert precision.scale() == 65536


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "pure_bf16", "pure_fp16"])
def test_without_a_scaler_every_scaler_call_does_nothing(mode):
    precision = Precision(mode, "cpu")
    model = probe(precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loss = loss_of(precision, model)
    by_torch = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    precision.backward(loss)
    precision.unscale_(optimizer)
    precision.step(optimizer)
    precision.update()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), by_torch, strict=True))
    assert precision.scale() is None
    assert precision.state_dict() == {}
    assert precision.load_state_dict({}) is None


@pytest.mark.parametrize(
    ("mode", "device", "sentence"),
    [
        (
            "tf32",
            "cpu",
            "tf32 is not supported: tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this device is cpu",
        ),
        ("amp_bf16", "meta", "amp_bf16 is not supported: autocast is not available on meta"),
        (
            "fp8",
            "cpu",
            "precision mode 'fp8' does not exist; allowed are " + ", ".join(PRECISION_MODES),
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(mode, device, sentence):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the whole sentence is compared)
        Precision(mode, device)
    assert str(raised.value) == sentence


def test_a_mode_is_never_silently_replaced():
    precision = Precision("amp_fp16", "cpu")
    assert precision.scaler.is_enabled()
    assert precision.config == PRECISION_MODES["amp_fp16"]


@pytest.mark.parametrize("module", ["precision.precision", "config.modes", "config.schema"])
def test_the_examples_in_docstrings_run(module):
    results = doctest.testmod(importlib.import_module(f"ampsweep.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


@needs_cuda
@pytest.mark.parametrize("mode", ["fp32", "amp_fp16", "amp_bf16", "pure_bf16"])
def test_a_mode_computes_in_its_dtype_on_the_gpu(mode):
    precision = Precision(mode, "cuda")
    model = probe(precision)
    with precision.autocast():
        model(torch.ones(4, 8, device="cuda", dtype=precision.parameters_dtype))
    assert set(model.seen) == {precision.autocast_dtype}


@pytest.mark.parametrize("mode", ON_CPU)
def test_complex_parameters_keep_their_imaginary_parts(mode):
    layer = nn.Linear(2, 3, dtype=torch.complex64)
    weight = layer.weight.detach().clone()
    assert torch.equal(Precision(mode, "cpu").convert(layer).weight, weight)
