"""Whether float32 is float32: set for a mode, whatever was set before, and put back after it."""

import pytest
import torch
from devices import needs_tf32
from torch.backends import cuda, cudnn, mkldnn

from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.precision.flags import fp32_arithmetic

SWITCHES = {
    "cuda.matmul": cuda.matmul,
    "cudnn.conv": cudnn.conv,
    "cudnn.rnn": cudnn.rnn,
    "mkldnn.matmul": mkldnn.matmul,
    "mkldnn.conv": mkldnn.conv,
    "mkldnn.rnn": mkldnn.rnn,
}
OLDER = {
    "matmul precision": torch.get_float32_matmul_precision,
    "cuda.matmul.allow_tf32": lambda: cuda.matmul.allow_tf32,
    "cudnn.allow_tf32": lambda: cudnn.allow_tf32,
}


def assign(node, name, value):
    return lambda: setattr(node, name, value)


STATES_BEFORE = {
    "nothing set": lambda: None,
    "older: matmul high": lambda: torch.set_float32_matmul_precision("high"),
    "older: matmul medium": lambda: torch.set_float32_matmul_precision("medium"),
    "older: allow_tf32": assign(cuda.matmul, "allow_tf32", True),
    "older: cudnn without TF32": assign(cudnn, "allow_tf32", False),
    "newer: matmul": assign(cuda.matmul, "fp32_precision", "tf32"),
    "newer: one of cudnn": assign(cudnn.conv, "fp32_precision", "ieee"),
    "newer: all of cudnn": assign(cudnn, "fp32_precision", "ieee"),
    "newer: TF32 everywhere": assign(torch.backends, "fp32_precision", "tf32"),
    "newer: none anywhere": assign(torch.backends, "fp32_precision", "ieee"),
    "newer: bfloat16 matmuls on the CPU": assign(mkldnn.matmul, "fp32_precision", "bf16"),
    "newer: bfloat16 convolutions on the CPU": assign(mkldnn.conv, "fp32_precision", "bf16"),
}


def newer():
    return {name: switch.fp32_precision for name, switch in SWITCHES.items()}


def older():
    """The older switches; reading one raises where it disagrees with a newer one."""
    values = {}
    for name, read in OLDER.items():
        try:
            values[name] = read()
        except RuntimeError:
            values[name] = "raises"
    return values


@pytest.fixture(autouse=True)
def _leave_no_trace():
    before = newer()
    yield
    for node in (torch.backends, cudnn, mkldnn):
        node.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    for name, value in before.items():
        SWITCHES[name].fp32_precision = value


@pytest.mark.parametrize("state", STATES_BEFORE)
def test_without_tf32_float32_is_float32_whatever_was_set(state):
    STATES_BEFORE[state]()
    with fp32_arithmetic(matmul="highest", tf32=False):
        assert set(newer().values()) == {"ieee"}


@pytest.mark.parametrize("state", STATES_BEFORE)
def test_with_tf32_the_gpu_uses_it_whatever_was_set(state):
    STATES_BEFORE[state]()
    with fp32_arithmetic(matmul="high", tf32=True):
        assert {newer()[name] for name in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")} == {"tf32"}


@pytest.mark.parametrize(
    ("matmul", "on_cuda", "in_onednn"),
    [("highest", "ieee", "ieee"), ("high", "tf32", "tf32"), ("medium", "tf32", "bf16")],
)
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("state", STATES_BEFORE)
def test_matmuls_have_switches_of_their_own(state, tf32, matmul, on_cuda, in_onednn):
    STATES_BEFORE[state]()
    with fp32_arithmetic(matmul=matmul, tf32=tf32):
        convolutions = "tf32" if tf32 else "ieee"
        assert newer() == {
            "cuda.matmul": on_cuda,
            "cudnn.conv": convolutions,
            "cudnn.rnn": convolutions,
            "mkldnn.matmul": in_onednn,
            "mkldnn.conv": "ieee",
            "mkldnn.rnn": "ieee",
        }
        allowed = {"cuda.matmul.allow_tf32": matmul != "highest", "cudnn.allow_tf32": tf32}
        assert older() == {"matmul precision": matmul} | allowed


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("state", STATES_BEFORE)
def test_the_older_switches_can_be_read_and_say_the_same(state, tf32):
    STATES_BEFORE[state]()
    with fp32_arithmetic(matmul="high" if tf32 else "highest", tf32=tf32):
        assert older() == {
            "matmul precision": "high" if tf32 else "highest",
            "cuda.matmul.allow_tf32": tf32,
            "cudnn.allow_tf32": tf32,
        }


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("state", STATES_BEFORE)
def test_what_was_set_is_set_again(state, tf32):
    STATES_BEFORE[state]()
    before, older_before = newer(), older()
    with fp32_arithmetic(matmul="high" if tf32 else "highest", tf32=tf32):
        pass
    assert newer() == before
    kept = {name: value for name, value in older_before.items() if value != "raises"}
    assert {name: older()[name] for name in kept} == kept


def test_what_was_set_is_set_again_after_an_error():
    before = newer()
    with pytest.raises(ZeroDivisionError), fp32_arithmetic(matmul="high", tf32=True):
        _ = 1 / 0
    assert newer() == before


def test_modes_can_be_nested():
    with fp32_arithmetic(matmul="high", tf32=True):
        outer = newer()
        with fp32_arithmetic(matmul="highest", tf32=False):
            assert newer() != outer
        assert newer() == outer


@needs_tf32
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("state", STATES_BEFORE)
def test_arithmetic_on_the_gpu_is_what_the_switches_say(state, tf32):
    STATES_BEFORE[state]()
    with fp32_arithmetic(matmul="high" if tf32 else "highest", tf32=tf32):
        found = exact_or_rounded(kept_bits(torch.device("cuda"), "convolution"))
    assert set(found.values()) == {"rounded" if tf32 else "exact"}
