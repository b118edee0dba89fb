"""Effects of each precision mode on a model, a forward pass, a backward pass and a step."""

import doctest
import importlib
import re
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from devices import CPU_AND_CUDA
from torch import nn

from ampsweep.config.modes import PRECISION_MODES, step_dtypes
from ampsweep.precision import Precision
from ampsweep.precision.support import refusal_by_kernel

ON_CPU = [mode for mode in PRECISION_MODES if mode != "tf32" and not mode.startswith("fp8")]
"""Modes that take any model; float8 converts only some layers, and has its own tests."""


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
    inputs = torch.linspace(-1, 1, 32, device=precision.device).reshape(4, 8).to(precision.parameters_dtype)
    with precision.autocast():
        out = model(inputs)
        return F.mse_loss(out, torch.zeros_like(out))


@pytest.mark.parametrize("mode", ON_CPU)
def test_a_step_has_the_dtypes_of_its_mode(mode):
    precision = Precision(mode, "cpu")
    assert (precision.config, precision.scaler.is_enabled()) == (PRECISION_MODES[mode], precision.config.grad_scaler)
    model = probe(precision)
    optimizer = precision.optimizer(partial(torch.optim.AdamW, fused=True), model.parameters())
    loss = loss_of(precision, model)
    if precision.config.autocast:
        assert loss.dtype == torch.float32
    by_torch = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    precision.backward(loss)
    if not precision.config.grad_scaler:  # all calls of the scaler do nothing
        precision.unscale_(optimizer)
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), by_torch, strict=True))
        assert (precision.scale(), precision.state_dict(), precision.load_state_dict({})) == (None, {}, None)
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
    layer = nn.Linear(2, 3, dtype=torch.complex64)
    weight = layer.weight.detach().clone()
    assert torch.equal(Precision(mode, "cpu").convert(layer).weight, weight), "imaginary parts are kept"


DTYPES = {
    "fp32": torch.float32,
    "amp_fp16": torch.float16,
    "amp_bf16": torch.bfloat16,
    "pure_fp16": torch.float16,
    "pure_bf16": torch.bfloat16,
}


@pytest.mark.parametrize("device", CPU_AND_CUDA)
@pytest.mark.parametrize("mode", DTYPES)
def test_the_forward_pass_is_computed_in_the_dtype_of_the_mode(mode, device):
    precision = Precision(mode, device)
    model = probe(precision)
    loss_of(precision, model)
    assert set(model.seen) == {DTYPES[mode]}
    with precision.autocast():
        assert torch.is_autocast_enabled(device) == mode.startswith("amp")
        assert not mode.startswith("amp") or torch.get_autocast_dtype(device) == DTYPES[mode]
    assert not torch.is_autocast_enabled(device)


def test_settings_of_autocast_are_in_effect():
    def of(**changes):
        return Precision(replace(PRECISION_MODES["amp_fp16"], **changes), "cpu")

    for enabled in (True, False):
        with of(cache_enabled=enabled).autocast():
            assert torch.is_autocast_cache_enabled() == enabled
    for choice, is_on in (("full", False), ("autocast", True)):
        with of(eval=choice).eval_autocast():
            assert torch.is_autocast_enabled("cpu") == is_on
    precision = of(autocast=False)
    model = probe(precision)
    loss_of(precision, model)
    assert set(model.seen) == {torch.float32}
    assert precision.scale() == 65536, "the scaler is a setting of its own"


def test_impossible_settings_are_refused():
    for mode, device, sentence in (
        ("tf32", "cpu", "tf32 is not supported: tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this"),
        ("amp_bf16", "meta", "amp_bf16 is not supported: autocast is not available on meta"),
        ("fp8", "cpu", f"precision mode 'fp8' does not exist; allowed are {', '.join(PRECISION_MODES)}"),
        (replace(PRECISION_MODES["pure_fp16"], grad_scaler=True), "cpu", "pure_fp16 is not supported: a GradScaler "),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            Precision(mode, device)


PRIMITIVE = "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload"


@pytest.mark.parametrize(
    ("mode", "error", "dtype"),
    [
        ("amp_fp16", PRIMITIVE, "float16"),
        ("amp_fp16", "could not create a primitive", "float16"),
        ("pure_fp16", "\"ctc_loss_cpu\" not implemented for 'Half'", "float16"),
        ("amp_fp16", "Unsupported dtype Half", "float16"),
        ("pure_bf16", "\"_geqrf_cuda\" not implemented for 'BFloat16'", "bfloat16"),
        ("fp32", PRIMITIVE, None),
        ("fp32", "\"ctc_loss_cpu\" not implemented for 'Half'", None),
        ("amp_bf16", "\"ctc_loss_cpu\" not implemented for 'Half'", None),
        ("amp_fp16", "expected m1 and m2 to have the same dtype, but got: c10::Half != float", None),
    ],
)
def test_only_a_missing_kernel_is_a_refusal(mode, error, dtype):
    sentence = None if dtype is None else f"cpu cannot compute this model in {dtype}: {error}"
    assert refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu") == sentence
    assert refusal_by_kernel(ValueError(error), PRECISION_MODES[mode], "cpu") is None, "of the user's own code"


@pytest.mark.parametrize("module", ["precision.precision", "config.modes", "config.schema"])
def test_the_examples_in_docstrings_run(module):
    results = doctest.testmod(importlib.import_module(f"ampsweep.{module}"))
    assert (results.attempted > 0, results.failed) == (True, 0)
