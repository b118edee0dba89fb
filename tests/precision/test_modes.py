"""Effects of each precision mode on a model and a step, and of the gradient scaler: overflows, skips, checkpoints."""

import copy
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


def probe():
    model = nn.Linear(8, 1)
    model.register_buffer("shift", torch.ones(1))
    return model


def name_of(dtypes):
    (dtype,) = dtypes
    return str(dtype).removeprefix("torch.")


def computed(precision, model):
    """The loss and the dtype of the output."""
    inputs = torch.linspace(-1, 1, 32, device=precision.device).reshape(4, 8).to(precision.parameters_dtype)
    with precision.autocast():
        out = model(inputs)
        return F.mse_loss(out, torch.zeros_like(out)), out.dtype


COMPUTE = {"fp32": "float32", "amp_fp16": "float16", "amp_bf16": "bfloat16", "pure_bf16": "bfloat16"}


@pytest.mark.parametrize("device", CPU_AND_CUDA)
@pytest.mark.parametrize("mode", ON_CPU)
def test_a_step_has_the_dtypes_of_its_mode(mode, device):
    precision = Precision(mode, device)
    assert (precision.config, precision.scaler.is_enabled()) == (PRECISION_MODES[mode], precision.config.grad_scaler)
    model = precision.convert(probe())
    optimizer = precision.optimizer(partial(torch.optim.AdamW, fused=True), model.parameters())
    loss, dtype = computed(precision, model)
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
    assert promised["compute"] == COMPUTE.get(mode, promised["compute"])
    assert promised.pop("reduction") == promised["gradients"], "there is one device here"
    assert promised == {
        "compute": name_of({dtype}),
        "parameters": name_of({precision.parameters_dtype, model.shift.dtype, *(p.dtype for p in model.parameters())}),
        "gradients": name_of(gradients),
        "optimizer_state": name_of({state["exp_avg"].dtype for state in optimizer.state.values()}),
    }
    assert not torch.is_autocast_enabled(device)
    layer = nn.Linear(2, 3, dtype=torch.complex64)
    assert precision.convert(layer).weight.dtype == torch.complex64, "imaginary parts are kept"


def of(mode, **changes):
    return replace(PRECISION_MODES[mode], **changes)


def test_settings_of_autocast_are_in_effect():
    for enabled in (True, False):
        with Precision(of("amp_fp16", cache_enabled=enabled), "cpu").autocast():
            assert torch.is_autocast_cache_enabled() == enabled
    for choice, is_on in (("full", False), ("autocast", True)):
        with Precision(of("amp_fp16", eval=choice), "cpu").eval_autocast():
            assert torch.is_autocast_enabled("cpu") == is_on
    precision = Precision(of("amp_fp16", autocast=False), "cpu")
    assert computed(precision, precision.convert(probe()))[1] == torch.float32
    assert precision.scale() == 65536, "the scaler is a setting of its own"


def test_impossible_settings_are_refused():
    for mode, device, sentence in (
        ("tf32", "cpu", "tf32 is not supported: tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this"),
        ("amp_bf16", "meta", "amp_bf16 is not supported: autocast is not available on meta"),
        ("fp8", "cpu", f"precision mode 'fp8' does not exist; allowed are {', '.join(PRECISION_MODES)}"),
        (of("pure_fp16", grad_scaler=True), "cpu", "pure_fp16 is not supported: a GradScaler "),
        (of("pure_bf16", fp32_modules=["head"]), "cpu", "pure_bf16 is not supported: fp32_modules needs param"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            Precision(mode, device)


def test_only_a_missing_kernel_is_a_refusal():
    for mode, error, dtype in (
        ("amp_fp16", "could not create a primitive", "float16"),
        ("pure_fp16", "\"ctc_loss_cpu\" not implemented for 'Half'", "float16"),
        ("amp_fp16", "Unsupported dtype Half", "float16"),
        ("pure_bf16", "\"_geqrf_cuda\" not implemented for 'BFloat16'", "bfloat16"),
        ("fp32", "could not create a primitive", None),
        ("amp_bf16", "\"ctc_loss_cpu\" not implemented for 'Half'", None),
        ("amp_fp16", "expected m1 and m2 to have the same dtype, but got: c10::Half != float", None),
    ):
        sentence = None if dtype is None else f"cpu cannot compute this model in {dtype}: {error}"
        assert refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu") == sentence
        assert refusal_by_kernel(ValueError(error), PRECISION_MODES[mode], "cpu") is None, "of the user's own code"


KINDS = {"AdamW": torch.optim.AdamW, "SGD": partial(torch.optim.SGD, momentum=0.9)}


class Training:
    """A hand-written loop around `Precision`, in a mode with the scaler's settings."""

    def __init__(self, device="cpu", optimizer="AdamW", mode="amp_fp16", *, fused=True, **scaler):
        self.precision = Precision(of(mode, **scaler), device)
        torch.manual_seed(0)
        self.model = self.precision.convert(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
        build = partial(KINDS[optimizer], lr=1e-2, fused=fused)
        self.optimizer = self.precision.optimizer(build, self.model.parameters())
        self.inputs = torch.linspace(-1, 1, 64, device=device).reshape(8, 8).to(self.precision.parameters_dtype)

    def step(self):
        with self.precision.autocast():
            out = self.model(self.inputs)
            loss = F.mse_loss(out, torch.ones_like(out))
        self.precision.backward(loss)
        torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
        self.precision.step(self.optimizer)
        torch.use_deterministic_algorithms(False)
        self.precision.update()
        self.optimizer.zero_grad()

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize(("optimizer", "fused"), [("AdamW", True), ("AdamW", False), ("SGD", True), ("SGD", False)])
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_an_overflow_changes_nothing_but_halves_the_scale(device, optimizer, fused):
    training = Training(device, optimizer, fused=fused, init_scale=2.0**40)
    before, scale, num_skipped = training.parameters(), 2.0**40, 0
    while equal(before, training.parameters()) and num_skipped < 40:
        assert training.precision.scale().item() == 2.0 ** (40 - num_skipped)
        training.step()
        num_skipped += training.precision.scale().item() < 2.0 ** (40 - num_skipped)
    assert num_skipped > 10
    assert all(int(state.get("step", 1)) == 1 for state in training.optimizer.state.values())
    training.precision.load_state_dict(training.precision.state_dict() | {"scale": scale})
    before = copy.deepcopy((training.optimizer.state_dict()["state"], training.model.state_dict()))
    for num_skipped in range(1, 4):
        training.step()
        assert training.precision.scale() == 2.0 ** (40 - num_skipped)
        now = (training.optimizer.state_dict()["state"], training.model.state_dict())
        torch.testing.assert_close(now, before, rtol=0, atol=0)


@pytest.mark.parametrize(("mode", "tolerance"), [("amp_fp16", 1e-5), ("master_fp16", 1e-2)])
@pytest.mark.parametrize("device", CPU_AND_CUDA)
def test_fused_and_other_momenta_begin_alike_after_skips(device, mode, tolerance):
    trained = []
    for fused in (True, False):
        training = Training(device, "SGD", mode, fused=fused, init_scale=2.0**32)
        for _ in range(30):
            training.step()
        assert training.precision.scale() < 2.0**30, "several steps were skipped"
        trained.append(training.model.state_dict())
    torch.testing.assert_close(*trained, rtol=tolerance, atol=tolerance)


def test_settings_reach_the_scaler_and_replace_a_checkpoints():
    mine = {"growth_factor": 3.0, "backoff_factor": 0.1, "growth_interval": 7}
    precision = Precision(of("amp_fp16", init_scale=8.0, **mine), "cpu")
    assert precision.state_dict() == {"scale": 8.0, "_growth_tracker": 0} | mine
    saved = Precision(of("amp_fp16", init_scale=16.0), "cpu").state_dict() | {"_growth_tracker": 2}
    assert precision.load_state_dict(saved) is None
    assert precision.state_dict() == {"scale": 16.0, "_growth_tracker": 2} | mine
    precision.load_state_dict(saved | {"_growth_tracker": 9})
    assert precision.state_dict()["_growth_tracker"] == 2, "a tracker beyond a shorter interval still grows"
    scale = precision.scale()
    assert (scale.dtype, scale.shape, scale.item()) == (torch.float32, (), precision.scaler.get_scale())
    precision = Precision(of("amp_fp16", init_scale=1024.0), "cpu")
    note = precision.load_state_dict(Precision("fp32", "cpu").state_dict())
    assert note == "the checkpoint has no GradScaler state; a fresh one starts at scale 1024"
    assert precision.scale() == 1024
    note = Precision("fp32", "cpu").load_state_dict(precision.state_dict())
    assert note == "the checkpoint's GradScaler state is ignored; this run has no scaler"
