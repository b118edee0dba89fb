"""A run proves its precision mode, whatever flags and variables say."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from devices import needs_tf32
from torch import nn
from torch.nn import functional as F

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.monitors.device_peaks import dense_peak
from ampsweep.monitors.environment import effective_flags
from ampsweep.observe.step import trace_step
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import exact_or_rounded, flops_by_arithmetic, kept_bits, kinds_in
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.record.parts import ModeProof

CPU = torch.device("cpu")
FP32, TF32, AMP_BF16 = (PRECISION_MODES[mode] for mode in ("fp32", "tf32", "amp_bf16"))
EXACT, ROUNDED = {"matmul": "exact", "convolution": "exact"}, {"matmul": "rounded", "convolution": "rounded"}


def rounded_matmul(a, b):
    return a.bfloat16().float() @ b


def rounded_conv2d(image, kernel, **options):
    return F.conv2d(image.bfloat16().float(), kernel, **options)


def truncated(x, bits):
    return (x.view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


def parts(x):
    """The two bfloat16 numbers whose sum is nearest to a float32."""
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


def bfloat16_times_3(a, b):
    """The three largest of the products of two bfloat16 numbers each (Henry, Tang and Heinecke, arXiv:1904.06376)."""
    (high, low), (other_high, other_low) = parts(a), parts(b)
    return high @ other_high + high @ other_low + low @ other_high


def test_float32_on_the_cpu_keeps_every_bit():
    with Precision("fp32", "cpu").flags():
        assert kept_bits(CPU, "convolution") == {"matmul": 23, "convolution": 23}
        assert kept_bits(CPU) == {"matmul": 23}


@pytest.mark.parametrize(
    ("matmul", "bits"),
    [
        (rounded_matmul, 7),
        (lambda a, b: a.half().float() @ b, 10),
        (lambda a, b: truncated(a, 10) @ b, 10),
        (bfloat16_times_3, 16),
        (lambda a, b: truncated(a, 3) @ b, 3),
        (lambda a, b: a @ b * 2, 0),
        (lambda a, b: a @ b * float("nan"), 0),
    ],
    ids=["bfloat16", "float16", "TF32 by truncation", "three products of bfloat16", "3 bits", "wrong", "nan"],
)
def test_the_bits_that_a_matmul_keeps_are_counted(matmul, bits):
    found = kept_bits(CPU, "convolution", matmul=matmul)
    assert found == {"matmul": bits, "convolution": 23}
    assert exact_or_rounded(found) == EXACT | {"matmul": "rounded"}


def test_a_convolution_that_loses_bits_is_seen_as_well():
    found = kept_bits(CPU, "convolution", conv2d=rounded_conv2d)
    assert found == {"matmul": 23, "convolution": 7}
    assert exact_or_rounded(found) == EXACT | {"convolution": "rounded"}


def test_an_error_in_the_last_bits_is_no_rounding():
    def matmul(a, b):
        return a @ b * (1 + 2**-23)

    assert exact_or_rounded(kept_bits(CPU, matmul=matmul)) == {"matmul": "exact"}


def test_the_proof_leaves_no_trace_in_the_run():
    before = torch.get_rng_state()
    kept_bits(CPU, "convolution")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def bfloat16_matmuls_allowed():
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    yield
    matmul.fp32_precision = before


@pytest.mark.usefixtures("bfloat16_matmuls_allowed")
def test_a_flag_that_rounds_is_seen_and_undone_by_the_mode():
    x, y = torch.rand(256, 256, dtype=torch.float64), torch.rand(256, 256, dtype=torch.float64)
    error = ((x.float() @ y.float()) - x @ y).abs().max()
    if error < 1e-3:
        pytest.skip("this processor multiplies float32 matrices in float32 whatever the flag says")
    assert kept_bits(CPU) == {"matmul": 7}
    with Precision("fp32", "cpu").flags():
        assert kept_bits(CPU) == {"matmul": 23}


PROVE_IN_FLAGS = """
import sys, torch
from torch.nn import functional as F
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.monitors.environment import effective_flags
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.analysis.contradictions import contradictions
from ampsweep.precision import Precision
from ampsweep.record.parts import ModeProof
device, mode = torch.device(sys.argv[1]), sys.argv[2]
with Precision(mode, device).flags():
    x = torch.rand(4, 64, 32, 32, dtype=torch.float64, device=device)
    w = torch.rand(64, 64, 3, 3, dtype=torch.float64, device=device)
    error = (F.conv2d(x.float(), w.float()) - F.conv2d(x, w)).abs().max()
    print("rounds" if error > 1e-3 else "does not round")
    arithmetic = exact_or_rounded(kept_bits(device, "convolution"))
    proof = ModeProof(fp32_arithmetic=arithmetic, flags=effective_flags(device))
print(proof.fp32_arithmetic["convolution"])
print(*contradictions(PRECISION_MODES[mode], proof), sep="; ")
"""


def proven_with(device, mode="fp32", **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROVE_IN_FLAGS, device, mode],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_variable_that_bypasses_the_flags_is_seen():
    independent, convolution, found = proven_with("cpu", ONEDNN_DEFAULT_FPMATH_MODE="BF16")
    if independent == "does not round":
        pytest.skip("this processor convolves float32 in float32 whatever the variable says")
    assert convolution == "rounded"
    assert found == "a convolution in float32 lost bits, as TF32 does, although precision.tf32=false"


@pytest.mark.parametrize(
    ("precision", "arithmetic", "told"),
    [
        (FP32, EXACT, []),
        (FP32, {"matmul": "rounded"}, ["a matmul in float32 lost bits"]),
        (FP32, ROUNDED, ["a matmul and a convolution in float32 lost bits"]),
        (AMP_BF16, {"matmul": "rounded"}, ["a matmul in float32 lost bits"]),
        (TF32, ROUNDED, []),
        (TF32, EXACT | {"matmul": "rounded"}, []),
        (TF32, {"matmul": "exact"}, ["a matmul in float32 kept every bit"]),
        (TF32, EXACT, ["a matmul and a convolution in float32 kept every bit"]),
        (PRECISION_MODES["pure_bf16"], ROUNDED, []),
        (FP32, {}, []),
    ],
)
def test_arithmetic_is_held_against_what_the_settings_promise(precision, arithmetic, told):
    found = contradictions(precision, ModeProof(fp32_arithmetic=arithmetic))
    assert len(found) == len(told)
    for sentence, beginning in zip(found, told, strict=True):
        assert sentence.startswith(beginning)
        assert sentence.endswith(f"although precision.tf32={str(precision.tf32).lower()}")


def with_matmul(setting, precision=FP32):
    return replace(precision, fp32_matmul=setting)


@pytest.mark.parametrize(
    ("precision", "bits", "told"),
    [
        (with_matmul("high"), {"matmul": 10}, []),
        (with_matmul("high"), {"matmul": 16}, []),
        (with_matmul("high"), {"matmul": 10, "convolution": 23}, []),
        (with_matmul("high"), {"matmul": 7}, ["a matmul in float32 kept 7 bits behind the point"]),
        (with_matmul("high"), {"matmul": 23}, ["a matmul in float32 kept every bit"]),
        (with_matmul("medium"), {"matmul": 7, "convolution": 23}, []),
        (with_matmul("medium"), {"matmul": 10}, ["a matmul in float32 kept 10 bits behind the point"]),
        (with_matmul("medium"), {"matmul": 23}, ["a matmul in float32 kept every bit"]),
        (with_matmul("highest"), {"matmul": 16}, ["a matmul in float32 lost bits"]),
        (with_matmul("medium", AMP_BF16), {"matmul": 7}, []),
        (with_matmul("highest", TF32), {"matmul": 23, "convolution": 10}, []),
        (with_matmul("medium", PRECISION_MODES["pure_bf16"]), {"matmul": 23}, []),
    ],
)
def test_the_bits_of_a_matmul_are_held_against_its_setting(precision, bits, told):
    found = contradictions(precision, ModeProof(fp32_arithmetic=exact_or_rounded(bits), fp32_bits=bits))
    setting = f", although precision.fp32_matmul={precision.fp32_matmul}"
    assert found == [f"{sentence}{setting}" if "lost" not in sentence else found[0] for sentence in told]
    assert all(sentence.endswith(setting) for sentence in found)


def test_a_setting_of_matmuls_alone_leaves_convolutions_exact():
    bits = {"matmul": 10, "convolution": 10}
    proof = ModeProof(fp32_arithmetic=exact_or_rounded(bits), fp32_bits=bits)
    assert contradictions(with_matmul("high"), proof) == [
        "a convolution in float32 lost bits, as TF32 does, although precision.tf32=false"
    ]


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_the_switches_of_a_setting_contradict_the_others_alone(setting):
    with fp32_arithmetic(matmul=setting, tf32=False):
        flags = ModeProof(flags=effective_flags(CPU))
    assert contradictions(with_matmul(setting), flags) == []
    wrong = with_matmul("high" if setting == "highest" else "highest")
    (found,) = contradictions(wrong, flags)
    assert found.endswith(f" during training, although precision.fp32_matmul={wrong.fp32_matmul}")


@pytest.mark.parametrize(
    ("precision", "of_matmuls", "of_convolutions"),
    [
        (FP32, "float32", "float32"),
        (TF32, "tf32", "tf32"),
        (with_matmul("high"), "tf32", "float32"),
        (with_matmul("highest", TF32), "float32", "tf32"),
        (with_matmul("medium"), "bfloat16", "float32"),
    ],
)
def test_operations_are_told_by_the_arithmetic_that_does_them(precision, of_matmuls, of_convolutions):
    found = flops_by_arithmetic(precision, {"float32": 100, "float16": 7}, {"float32": 30})
    expected = {"float16": 7, of_matmuls: 70} | {of_convolutions: 100 if of_convolutions == of_matmuls else 30}
    assert found == expected


def test_without_a_count_of_convolutions_arithmetic_is_unknown():
    flops = {"float32": 5, "bfloat16": 95}
    assert flops_by_arithmetic(with_matmul("high"), flops, None) == {"unknown": 5, "bfloat16": 95}
    assert flops_by_arithmetic(TF32, flops, None) == {"tf32": 5, "bfloat16": 95}
    assert flops_by_arithmetic(FP32, flops, None) == flops
    assert dense_peak("NVIDIA H100 80GB HBM3", {"unknown": 5, "bfloat16": 95}) is None


def test_operations_in_bfloat16_are_added_up():
    found = flops_by_arithmetic(with_matmul("medium", AMP_BF16), {"float32": 5, "bfloat16": 95}, {"bfloat16": 9})
    assert found == {"bfloat16": 100}


def test_a_flag_that_a_model_changes_while_it_trains_contradicts():
    matmul = torch.backends.mkldnn.matmul
    with Precision("fp32", "cpu").flags():
        assert contradictions(FP32, ModeProof(flags=effective_flags(CPU))) == []
        matmul.fp32_precision = "bf16"
        flags = effective_flags(CPU)
    assert contradictions(FP32, ModeProof(flags=flags)) == [
        "mkldnn_matmul_fp32_precision is bf16 during training, although precision.tf32=false"
    ]


def test_tf32_wants_every_switch_on():
    flags = {"matmul_fp32_precision": "tf32", "cudnn_conv_fp32_precision": "ieee", "cudnn_benchmark": True}
    assert contradictions(TF32, ModeProof(flags=flags)) == [
        "cudnn_conv_fp32_precision is ieee during training, although precision.tf32=true"
    ]


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.classify = nn.Conv2d(4, 8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.classify(self.convolution(x).mean((2, 3)))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return x * self.factors


MODELS = {
    "mlp": (lambda: MLP(in_features=16, hidden_size=16, out_features=16, num_layers=2), torch.randn(4, 16)),
    "gpt": (lambda: gpt(dropout=0.0), torch.arange(32).reshape(2, 16)),
    "gpt with dropout": (lambda: gpt(dropout=0.1), torch.arange(32).reshape(2, 16)),
    "convolutions": (Convolutional, torch.randn(2, 4, 8, 8)),
    "nothing but elementwise": (Scale, torch.randn(4, 16)),
}


def gpt(dropout):
    return GPT(vocab_size=32, seq_len=16, num_layers=1, hidden_size=64, num_heads=2, dropout=dropout)


def census(precision, model, x):
    """What a step of `model` computed under `precision`."""
    precision = Precision(precision, "cpu")
    model = precision.convert(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = x.to(precision.parameters_dtype) if x.is_floating_point() else x
    with precision.flags(), trace_step(model, optimizer) as trace:
        with precision.autocast():
            loss = model(x).float().square().mean()
        precision.backward(loss)
        precision.step(optimizer)
        precision.update()
    return ModeProof(flops=trace.result.flops)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16"])
def test_each_mode_keeps_its_promise_for_each_model(mode, model):
    make, x = MODELS[model]
    assert contradictions(PRECISION_MODES[mode], census(mode, make(), x)) == []


def test_autocast_that_does_nothing_contradicts():
    make, x = MODELS["mlp"]
    assert contradictions(AMP_BF16, census("fp32", make(), x)) == [
        "only 0% of the matmul and convolution operations ran in bfloat16, in which the mode computes"
    ]


def test_another_dtype_than_the_one_promised_contradicts():
    make, x = MODELS["gpt"]
    (found,) = contradictions(replace(AMP_BF16, dtype="float16"), census("amp_bf16", make(), x))
    assert found.startswith("only 0% of the matmul")


class HalfInside(nn.Module):
    """A model that computes a part of itself in bfloat16, whatever mode it is asked for."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.first(x)
        return self.second(x.float())


def test_a_model_that_casts_by_itself_is_no_float32_arm():
    (found,) = contradictions(FP32, census("fp32", HalfInside(), torch.randn(4, 16)))
    assert found.endswith("ran in bfloat16, although the mode computes in float32")


@pytest.mark.parametrize(
    ("share", "said"), [(1.0, "100%"), (0.997, "100%"), (0.5, "50%"), (0.012, "1%"), (2e-4, "0.02%")]
)
def test_a_share_is_said_in_plain_digits(share, said):
    flops = {"bfloat16": round(share * 10**6), "float32": round((1 - share) * 10**6)}
    (found,) = contradictions(FP32, ModeProof(flops=flops))
    assert found.startswith(f"{said} of the matmul")


def test_settings_count_and_not_the_name_of_their_mode():
    changed = replace(FP32, autocast=True, dtype="bfloat16")
    make, x = MODELS["mlp"]
    assert contradictions(changed, census(changed, make(), x)) == []
    assert contradictions(FP32, census(changed, make(), x)) != []


def test_a_model_without_convolutions_needs_no_proof_of_them():
    assert [*kinds_in(Convolutional())] == ["convolution"]
    assert [*kinds_in(nn.Sequential(nn.LSTM(4, 4)))] == []
    assert [*kinds_in(gpt(dropout=0.0))] == []


@needs_tf32
@pytest.mark.parametrize(("mode", "proof"), [("fp32", EXACT), ("tf32", ROUNDED)])
def test_on_cuda_the_modes_differ_in_their_arithmetic(mode, proof):
    device = torch.device("cuda")
    with Precision(mode, device).flags():
        assert exact_or_rounded(kept_bits(device, "convolution")) == proof
        assert contradictions(PRECISION_MODES[mode], ModeProof(flags=effective_flags(device))) == []


@needs_tf32
def test_on_cuda_a_variable_that_forces_tf32_is_seen():
    independent, convolution, found = proven_with("cuda", NVIDIA_TF32_OVERRIDE="1")
    if independent == "does not round":
        pytest.skip("cuDNN documents 0 alone, and this one does not listen to 1")
    assert convolution == "rounded"
    assert "a convolution in float32 lost bits" in found


@needs_tf32
def test_on_cuda_a_variable_that_forbids_tf32_is_seen():
    independent, convolution, found = proven_with("cuda", "tf32", NVIDIA_TF32_OVERRIDE="0")
    assert (independent, convolution) == ("does not round", "exact")
    assert found == "a matmul and a convolution in float32 kept every bit, although precision.tf32=true"
