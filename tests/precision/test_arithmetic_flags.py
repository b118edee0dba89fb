"""The switches of float32 arithmetic: set for a mode whatever was set before, and restored after it."""

from itertools import product

import pytest
import torch
from devices import needs_tf32
from torch.backends import cuda, cudnn, mkldnn

from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.precision.flags import fp32_arithmetic

ON_CUDA = {"highest": "ieee", "high": "tf32", "medium": "tf32"}
IN_ONEDNN = {"highest": "ieee", "high": "tf32", "medium": "bf16"}
SWITCHES = (cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
BEFORE = {
    "nothing set": (torch.backends, "fp32_precision", "none"),
    "older: allow_tf32": (cuda.matmul, "allow_tf32", True),
    "older: cudnn without TF32": (cudnn, "allow_tf32", False),
    "newer: matmul": (cuda.matmul, "fp32_precision", "tf32"),
    "newer: cudnn convolutions": (cudnn.conv, "fp32_precision", "ieee"),
    "newer: TF32 everywhere": (torch.backends, "fp32_precision", "tf32"),
    "newer: bfloat16 matmuls on the CPU": (mkldnn.matmul, "fp32_precision", "bf16"),
    "newer: bfloat16 convolutions on the CPU": (mkldnn.conv, "fp32_precision", "bf16"),
}


def newer():
    return [switch.fp32_precision for switch in SWITCHES]


def older():
    """The older switches by name; reading a switch raises if it disagrees with a newer one."""
    values = {}
    for name, node in (("allow_tf32", cuda.matmul), ("cudnn.allow_tf32", cudnn), ("matmul", None)):
        try:
            values[name] = node.allow_tf32 if node else torch.get_float32_matmul_precision()
        except RuntimeError:
            continue
    return values


def expected(matmul, tf32):
    convolutions = "tf32" if tf32 else "ieee"
    return [ON_CUDA[matmul], convolutions, convolutions, IN_ONEDNN[matmul], "ieee", "ieee"]


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
    for matmul, tf32 in product(ON_CUDA, (False, True)):
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


@needs_tf32
@pytest.mark.parametrize("tf32", [False, True])
def test_arithmetic_on_the_gpu_follows_the_switches(tf32):
    for state in BEFORE.values():
        setattr(*state)
        with fp32_arithmetic(matmul="high" if tf32 else "highest", tf32=tf32):
            found = exact_or_rounded(kept_bits(torch.device("cuda"), "convolution"))
        assert set(found.values()) == {"rounded" if tf32 else "exact"}
