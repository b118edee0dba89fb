"""The switches of float32 arithmetic, set for a mode and restored, and the bits that matmuls and convolutions keep."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
import torch
from devices import TF32, needs_tf32
from torch import nn
from torch.backends import cuda, cudnn, mkldnn
from torch.nn import functional as F

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits, matmul_bits
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.precision import unsupported_reason
from ampsweep.precision.support import Abilities, missing_ability
from ampsweep.predict.target_device import TargetDevice

MATMULS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
"""Of CUDA and of oneDNN, by setting."""
SWITCHES = (cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
BEFORE = {
    "nothing set": (torch.backends, "fp32_precision", "none"),
    "older: allow_tf32": (cuda.matmul, "allow_tf32", True),
    "newer: cudnn convolutions": (cudnn.conv, "fp32_precision", "ieee"),
    "newer: TF32 everywhere": (torch.backends, "fp32_precision", "tf32"),
    "newer: bfloat16 matmuls on the CPU": (mkldnn.matmul, "fp32_precision", "bf16"),
}


def newer():
    return [switch.fp32_precision for switch in SWITCHES]


def older():
    """The older switches by name; reading a switch raises if it disagrees with a newer one."""
    values = {}
    for name, node in (("allow_tf32", cuda.matmul), ("cudnn.allow_tf32", cudnn), ("matmul", None)):
        with suppress(RuntimeError):
            values[name] = node.allow_tf32 if node else torch.get_float32_matmul_precision()
    return values


def expected(matmul, tf32):
    (on_cuda, in_onednn), convolutions = MATMULS[matmul], "tf32" if tf32 else "ieee"
    return [on_cuda, convolutions, convolutions, in_onednn, "ieee", "ieee"]


@pytest.fixture(autouse=True)
def _restore_switches():
    before = newer()
    yield
    for node in (torch.backends, cudnn, mkldnn):
        node.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    for switch, value in zip(SWITCHES, before, strict=True):
        switch.fp32_precision = value


@pytest.mark.parametrize("state", BEFORE)
def test_switches_follow_the_settings_and_are_restored(state):
    setattr(*BEFORE[state])
    before, older_before = newer(), older()
    for matmul, tf32 in product(MATMULS, (False, True)):
        with fp32_arithmetic(matmul=matmul, tf32=tf32):
            assert newer() == expected(matmul, tf32)
            assert older() == {"allow_tf32": matmul != "highest", "cudnn.allow_tf32": tf32, "matmul": matmul}
        assert newer() == before
        assert older_before.items() <= older().items()


def test_switches_are_restored_after_an_error_and_when_nested():
    def fail():
        with fp32_arithmetic(matmul="high", tf32=True):
            with fp32_arithmetic(matmul="highest", tf32=False, cudnn_benchmark=True):
                assert newer() == expected("highest", tf32=False)
                assert cudnn.benchmark
            assert newer() == expected("high", tf32=True)
            assert not cudnn.benchmark
            raise ZeroDivisionError

    before = newer()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert newer() == before


CPU = torch.device("cpu")
CONVOLUTION = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Linear(8, 4))


def asked(setting, mode="fp32", **changes):
    return replace(PRECISION_MODES[mode], fp32_matmul=setting, **changes)


HIGH = "fp32_matmul=high would round nothing: it has no TF32 or bfloat16 kernels for float32 matmuls"
MEDIUM = "fp32_matmul=medium would round {}: it has no bfloat16 kernels for float32 matmuls"


def test_a_setting_that_changes_nothing_is_refused():
    for high_bits, medium_bits, high, medium in (
        (23, 23, HIGH, MEDIUM.format("nothing")),
        (23, 7, HIGH, None),
        (10, 10, None, MEDIUM.format("as high does")),
        (16, 7, None, None),
    ):
        bits = {"highest": 23, "high": high_bits, "medium": medium_bits}
        device = Abilities("it", tf32=False, bfloat16=True, autocast=True, matmul_bits=bits.__getitem__)
        for mode in ("fp32", "amp_bf16"):  # evaluation is in float32
            assert [missing_ability(asked(setting, mode), device) for setting in bits] == [None, high, medium]

    ampere, turing = (TargetDevice("cuda", capability).abilities for capability in ((8, 0), (7, 5)))
    assert missing_ability(asked("high"), ampere) is None
    assert missing_ability(asked("medium"), ampere).startswith("fp32_matmul=medium would round as high does: cuda 8.0")
    assert missing_ability(asked("high"), turing).startswith("fp32_matmul=high would round nothing: cuda 7.5")


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_the_support_of_this_processor_is_measured(setting):
    """Compared with float64 products of random numbers, independently of `kept_bits`."""
    a, b = (torch.rand(256, 256, dtype=torch.float64) for _ in range(2))
    with fp32_arithmetic(matmul=setting, tf32=False):
        error = (a.float() @ b.float() - a @ b).abs().max()
        bits = kept_bits(CPU)["matmul"]
    assert (bits < 18) == bool(error > 2e-4)
    assert (unsupported_reason(asked(setting), CPU) is None) == (bits < 18)
    assert matmul_bits(CPU, setting) == bits
    if bits < 18:
        with Precision(asked(setting), CPU).flags():
            assert kept_bits(CPU, CONVOLUTION) == {"matmul": bits, "convolution": 23}
    else:
        with pytest.raises(ValueError, match=f"fp32 is not supported: fp32_matmul={setting} would round"):
            Precision(asked(setting), CPU)
    with Precision(asked(setting, "pure_bf16"), CPU).flags():
        assert torch.get_float32_matmul_precision() == "highest", "no float32 matmuls to round"


@needs_tf32
def test_settings_on_cuda_are_in_effect_as_predicted():
    cuda = torch.device("cuda")
    for config, matmul, convolution in ((asked("high"), 10, 23), (asked("highest", "tf32"), 23, 10)):
        with Precision(config, cuda).flags():
            assert kept_bits(cuda, CONVOLUTION) == {"matmul": matmul, "convolution": convolution}
    abilities = TargetDevice("cuda", torch.cuda.get_device_capability()).abilities
    for setting in ("highest", "high", "medium"):
        assert matmul_bits(cuda, setting) == abilities.matmul_bits(setting)


def to_tf32(x):
    """Truncated to 10 bits."""
    return (x.view(torch.int32) & -(2**13)).view(torch.float32)


def bfloat16_times_3(a, b):
    """The three largest of the products of two bfloat16 numbers each (Henry, Tang and Heinecke, arXiv:1904.06376)."""
    high, other_high = a.bfloat16().float(), b.bfloat16().float()
    low, other_low = (a - high).bfloat16().float(), (b - other_high).bfloat16().float()
    return high @ other_high + high @ other_low + low @ other_high


def test_the_bits_of_a_rounding_matmul_are_counted(monkeypatch):
    for matmul, bits in (
        (lambda a, b: a.bfloat16().float() @ b, 7),
        (lambda a, b: to_tf32(a) @ b, 10),
        (bfloat16_times_3, 16),
        (lambda a, b: a @ b * 2, 0),
        (lambda a, b: a @ b * float("nan"), 0),
    ):
        monkeypatch.setattr(torch, "matmul", matmul)
        found = kept_bits(CPU)
        assert found == {"matmul": bits}
        assert exact_or_rounded(found) == {"matmul": "rounded"}


def test_rounding_is_reported_by_kind(monkeypatch):
    other, before = nn.Sequential(nn.LSTM(4, 4), nn.Embedding(4, 4)), torch.get_rng_state()
    with Precision("fp32", "cpu").flags():
        assert kept_bits(CPU, CONVOLUTION) == {"matmul": 23, "convolution": 23}
        assert kept_bits(CPU, other) == {"matmul": 23}
    assert torch.equal(torch.get_rng_state(), before), "the run's random numbers are left alone"
    conv2d = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda x, kernel, **how: conv2d(x.bfloat16().float(), kernel, **how))
    assert kept_bits(CPU, CONVOLUTION) == {"matmul": 23, "convolution": 7}
    assert exact_or_rounded({"matmul": 17, "convolution": 12}) == {"matmul": "rounded", "convolution": "exact"}
    assert exact_or_rounded({"matmul": 18, "convolution": 11}) == {"matmul": "exact", "convolution": "rounded"}
    monkeypatch.setattr(torch, "matmul", lambda a, b: a @ b * (1 + 2**-23))
    assert exact_or_rounded(kept_bits(CPU)) == {"matmul": "exact"}, "an error in the last bits is no rounding"


BYPASSED = """
import sys, torch
from torch.nn import functional as F
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
device, mode = torch.device(sys.argv[1]), sys.argv[2]
with Precision(mode, device).flags():
    x, w = (torch.rand(shape, dtype=torch.float64, device=device) for shape in ((4, 64, 32, 32), (64, 64, 3, 3)))
    error = (F.conv2d(x.float(), w.float()) - F.conv2d(x, w)).abs().max()
    bits = kept_bits(device, torch.nn.Conv2d(1, 1, 1))
    print("rounded" if error > 1e-3 else "exact", exact_or_rounded(bits)["convolution"])
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("device", "mode", "variables", "arithmetic"),
    [
        ("cpu", "fp32", {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, "rounded"),
        pytest.param("cuda", "fp32", {"NVIDIA_TF32_OVERRIDE": "1"}, "rounded", marks=TF32),
        pytest.param("cuda", "tf32", {"NVIDIA_TF32_OVERRIDE": "0"}, "exact", marks=TF32),
    ],
)
def test_a_variable_that_bypasses_the_flags_is_noticed(device, mode, variables, arithmetic):
    command = [sys.executable, "-c", BYPASSED, device, mode]
    independent, measured = subprocess.check_output(command, env=os.environ | variables, text=True).split()
    if independent != arithmetic:
        pytest.skip("convolutions do not listen to the variable here")
    assert measured == arithmetic
