"""Settings of float32 matmuls: refused where they would change nothing, and set as they are asked for."""

from dataclasses import replace

import pytest
import torch
from devices import needs_cuda, needs_tf32

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import kept_bits, matmul_bits
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.precision import unsupported_reason
from ampsweep.precision.support import Abilities, missing_ability
from ampsweep.predict.target_device import TargetDevice

CPU = torch.device("cpu")
FP32 = PRECISION_MODES["fp32"]
NOTHING = {"highest": 23, "high": 23, "medium": 23}
AMX = NOTHING | {"medium": 7}
AMPERE = {"highest": 23, "high": 10, "medium": 10}
ALL = {"highest": 23, "high": 16, "medium": 7}


def asked(setting, mode="fp32", **changes):
    return replace(PRECISION_MODES[mode], fp32_matmul=setting, **changes)


def device(bits, *, tf32=False):
    return Abilities("it", tf32=tf32, bfloat16=True, autocast=True, matmul_bits=bits.__getitem__)


@pytest.mark.parametrize(
    ("setting", "bits", "reason"),
    [
        ("high", NOTHING, "fp32_matmul=high would round nothing: it has no TF32 or bfloat16 kernels"),
        ("medium", NOTHING, "fp32_matmul=medium would round nothing: it has no bfloat16 kernels"),
        ("high", AMX, "fp32_matmul=high would round nothing: it has no TF32 or bfloat16 kernels"),
        ("medium", AMX, None),
        ("high", AMPERE, None),
        ("medium", AMPERE, "fp32_matmul=medium would round as high does: it has no bfloat16 kernels"),
        ("high", ALL, None),
        ("medium", ALL, None),
        *(("highest", bits, None) for bits in (NOTHING, AMX, AMPERE, ALL)),
    ],
)
def test_a_setting_that_changes_nothing_is_refused(setting, bits, reason):
    told = None if reason is None else f"{reason} for float32 matmuls"
    assert missing_ability(asked(setting), device(bits)) == told
    assert missing_ability(asked(setting, "amp_bf16"), device(bits)) == told, "float32 is still that of evaluation"


@pytest.mark.parametrize(
    "config",
    [
        *PRECISION_MODES.values(),
        asked("highest"),
        asked("medium", "pure_bf16"),
        asked("high", "tf32"),
        asked("highest", "tf32"),
    ],
)
def test_a_device_is_asked_for_nothing_that_has_no_effect(config):
    def fail(setting):
        raise AssertionError(setting)

    it = Abilities("it", tf32=True, bfloat16=True, autocast=True, matmul_bits=fail)
    assert missing_ability(config, it) is None


def test_a_prediction_for_cuda_knows_what_its_matmuls_can():
    ampere, turing = (TargetDevice("cuda", capability).abilities for capability in ((8, 0), (7, 5)))
    assert missing_ability(asked("high"), ampere) is None
    assert missing_ability(asked("medium"), ampere).startswith("fp32_matmul=medium would round as high does: cuda 8.0")
    assert missing_ability(asked("high"), turing).startswith("fp32_matmul=high would round nothing: cuda 7.5")


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_what_this_processor_does_decides(setting):
    """Compared with what float64 says of random numbers, not with how the ability is measured."""
    a, b = (torch.rand(256, 256, dtype=torch.float64) for _ in range(2))
    with fp32_arithmetic(matmul=setting, tf32=False):
        error = (a.float() @ b.float() - a @ b).abs().max()
        bits = kept_bits(CPU)["matmul"]
    assert (bits < 18) == bool(error > 2e-4)
    assert (unsupported_reason(asked(setting), CPU) is None) == (bits < 18)
    assert matmul_bits(CPU, setting) == bits


def test_an_arm_that_this_processor_has_computes_as_it_says():
    config = asked("medium")
    if (reason := unsupported_reason(config, CPU)) is not None:
        with pytest.raises(ValueError, match="fp32 is not supported: fp32_matmul=medium would round"):
            Precision(config, CPU)
        pytest.skip(reason)
    with Precision(config, CPU).flags():
        assert kept_bits(CPU, "convolution") == {"matmul": 7, "convolution": 23}


def test_16_bit_parameters_leave_the_switch_alone():
    with Precision(asked("medium", "pure_bf16"), CPU).flags():
        assert torch.get_float32_matmul_precision() == "highest"


@needs_tf32
def test_on_cuda_high_rounds_matmuls_alone():
    cuda = torch.device("cuda")
    with Precision(asked("high"), cuda).flags():
        assert kept_bits(cuda, "convolution") == {"matmul": 10, "convolution": 23}
    with Precision(asked("highest", "tf32"), cuda).flags():
        found = kept_bits(cuda, "convolution")
    assert found["matmul"] == 23
    assert found["convolution"] == 10


@needs_cuda
@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_what_is_known_of_cuda_is_what_a_product_shows(setting):
    cuda = torch.device("cuda")
    abilities = TargetDevice("cuda", torch.cuda.get_device_capability()).abilities
    assert matmul_bits(cuda, setting) == abilities.matmul_bits(setting)
