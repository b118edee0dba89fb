"""Bits of float32 matmuls and convolutions: measured whatever flags and variables say, and set by `fp32_matmul`."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from devices import TF32, needs_tf32
from torch import nn
from torch.nn import functional as F

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits, kinds_in, matmul_bits
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.precision import unsupported_reason
from ampsweep.precision.support import Abilities, missing_ability
from ampsweep.predict.target_device import TargetDevice

CPU = torch.device("cpu")
NOTHING = {"highest": 23, "high": 23, "medium": 23}
AMX = NOTHING | {"medium": 7}
AMPERE = {"highest": 23, "high": 10, "medium": 10}
ALL = {"highest": 23, "high": 16, "medium": 7}


def asked(setting, mode="fp32", **changes):
    return replace(PRECISION_MODES[mode], fp32_matmul=setting, **changes)


HIGH = "fp32_matmul=high would round nothing: it has no TF32 or bfloat16 kernels for float32 matmuls"
MEDIUM = "fp32_matmul=medium would round {}: it has no bfloat16 kernels for float32 matmuls"


def test_a_setting_that_changes_nothing_is_refused():
    for bits, high, medium in (
        (NOTHING, HIGH, MEDIUM.format("nothing")),
        (AMX, HIGH, None),
        (AMPERE, None, MEDIUM.format("as high does")),
        (ALL, None, None),
    ):
        device = Abilities("it", tf32=False, bfloat16=True, autocast=True, matmul_bits=bits.__getitem__)
        for mode in ("fp32", "amp_bf16"):  # evaluation is in float32
            found = [missing_ability(asked(setting, mode), device) for setting in ("highest", "high", "medium")]
            assert found == [None, high, medium]


def test_a_prediction_for_cuda_knows_its_matmuls():
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


def test_a_supported_setting_is_in_effect():
    with Precision(asked("medium", "pure_bf16"), CPU).flags():
        assert torch.get_float32_matmul_precision() == "highest", "no float32 matmuls to round"
    config = asked("medium")
    if (reason := unsupported_reason(config, CPU)) is not None:
        with pytest.raises(ValueError, match="fp32 is not supported: fp32_matmul=medium would round"):
            Precision(config, CPU)
        pytest.skip(reason)
    with Precision(config, CPU).flags():
        assert kept_bits(CPU, "convolution") == {"matmul": 7, "convolution": 23}


@needs_tf32
def test_settings_on_cuda_are_in_effect_as_predicted():
    cuda = torch.device("cuda")
    for config, matmul, convolution in ((asked("high"), 10, 23), (asked("highest", "tf32"), 23, 10)):
        with Precision(config, cuda).flags():
            assert kept_bits(cuda, "convolution") == {"matmul": matmul, "convolution": convolution}
    abilities = TargetDevice("cuda", torch.cuda.get_device_capability()).abilities
    for setting in ("highest", "high", "medium"):
        assert matmul_bits(cuda, setting) == abilities.matmul_bits(setting)


def truncated(x, bits):
    return (x.view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


def two_bfloat16(x):
    """The two bfloat16 numbers whose sum is nearest to a float32."""
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


def bfloat16_times_3(a, b):
    """The three largest of the products of two bfloat16 numbers each (Henry, Tang and Heinecke, arXiv:1904.06376)."""
    (high, low), (other_high, other_low) = two_bfloat16(a), two_bfloat16(b)
    return high @ other_high + high @ other_low + low @ other_high


def test_float32_on_the_cpu_keeps_every_bit():
    before = torch.get_rng_state()
    with Precision("fp32", "cpu").flags():
        assert kept_bits(CPU, "convolution") == {"matmul": 23, "convolution": 23}
        assert kept_bits(CPU) == {"matmul": 23}
    assert torch.equal(torch.get_rng_state(), before), "the run's random numbers are left alone"


@pytest.mark.parametrize(
    ("matmul", "bits"),
    [
        (lambda a, b: a.bfloat16().float() @ b, 7),
        (lambda a, b: a.half().float() @ b, 10),
        (lambda a, b: truncated(a, 10) @ b, 10),
        (bfloat16_times_3, 16),
        (lambda a, b: truncated(a, 3) @ b, 3),
        (lambda a, b: a @ b * 2, 0),
        (lambda a, b: a @ b * float("nan"), 0),
    ],
    ids=["bfloat16", "float16", "TF32 by truncation", "three products of bfloat16", "3 bits", "wrong", "nan"],
)
def test_the_bits_of_a_rounding_matmul_are_counted(matmul, bits):
    found = kept_bits(CPU, matmul=matmul)
    assert found == {"matmul": bits}
    assert exact_or_rounded(found) == {"matmul": "rounded"}


def test_rounding_is_reported_by_kind():
    def rounded_conv2d(image, kernel, **options):
        return F.conv2d(image.bfloat16().float(), kernel, **options)

    found = kept_bits(CPU, "convolution", conv2d=rounded_conv2d)
    assert found == {"matmul": 23, "convolution": 7}
    assert exact_or_rounded(found) == {"matmul": "exact", "convolution": "rounded"}
    assert exact_or_rounded({"matmul": 17, "convolution": 12}) == {"matmul": "rounded", "convolution": "exact"}
    assert exact_or_rounded({"matmul": 18, "convolution": 11}) == {"matmul": "exact", "convolution": "rounded"}

    found = kept_bits(CPU, matmul=lambda a, b: a @ b * (1 + 2**-23))
    assert exact_or_rounded(found) == {"matmul": "exact"}, "an error in the last bits is no rounding"
    assert [*kinds_in(nn.Sequential(nn.Conv1d(4, 4, 3), nn.Linear(8, 4)))] == ["convolution"]
    assert [*kinds_in(nn.Sequential(nn.LSTM(4, 4), nn.Embedding(4, 4)))] == []


LOST = "a convolution in float32 lost bits, as TF32 does, although precision.tf32=false"
KEPT = "a matmul and a convolution in float32 kept every bit, although precision.tf32=true"
PROVE_IN_FLAGS = """
import sys, torch
from torch.nn import functional as F
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.analysis.contradictions import contradictions
from ampsweep.precision import Precision
from ampsweep.record.sections import ModeProof
device, mode = torch.device(sys.argv[1]), sys.argv[2]
with Precision(mode, device).flags():
    x = torch.rand(4, 64, 32, 32, dtype=torch.float64, device=device)
    w = torch.rand(64, 64, 3, 3, dtype=torch.float64, device=device)
    error = (F.conv2d(x.float(), w.float()) - F.conv2d(x, w)).abs().max()
    print("rounds" if error > 1e-3 else "does not round")
    arithmetic = exact_or_rounded(kept_bits(device, "convolution"))
print(*contradictions(PRECISION_MODES[mode], ModeProof(fp32_arithmetic=arithmetic)), sep="; ")
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("device", "mode", "variables", "found"),
    [
        ("cpu", "fp32", {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, LOST),
        pytest.param("cuda", "fp32", {"NVIDIA_TF32_OVERRIDE": "1"}, LOST, marks=TF32),
        pytest.param("cuda", "tf32", {"NVIDIA_TF32_OVERRIDE": "0"}, KEPT, marks=TF32),
    ],
)
def test_a_variable_that_bypasses_the_flags_is_noticed(device, mode, variables, found):
    command = [sys.executable, "-c", PROVE_IN_FLAGS, device, mode]
    independent, *proof = subprocess.check_output(command, env=os.environ | variables, text=True).splitlines()
    if (independent == "rounds") != (mode == "fp32"):
        pytest.skip("convolutions do not listen to the variable here")
    assert proof == [found]
