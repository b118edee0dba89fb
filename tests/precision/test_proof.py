"""A run proves its precision mode from measured arithmetic, flags in effect and counted operations."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from traced import traced

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.models.gpt import GPT
from ampsweep.models.llama import Llama
from ampsweep.models.mlp import MLP
from ampsweep.monitors.device_peaks import dense_peak
from ampsweep.monitors.environment import effective_flags
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import exact_or_rounded, flops_by_arithmetic
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.records.sections import ModeProof

CPU = torch.device("cpu")
FP32, TF32, AMP_BF16, PURE_BF16 = (PRECISION_MODES[mode] for mode in ("fp32", "tf32", "amp_bf16", "pure_bf16"))


def with_matmul(setting, precision=FP32):
    return replace(precision, fp32_matmul=setting)


def test_measurements_and_flags_that_contradict_the_settings(golden):
    high, medium = with_matmul("high"), with_matmul("medium")
    rows = [
        *((FP32, bits) for bits in ((23, 23), (16,), (10, 10), (23, 10))),
        (AMP_BF16, (7,)),
        *((TF32, bits) for bits in ((10, 10), (10, 23), (23,), (23, 23))),
        (PURE_BF16, (7, 7)),
        *((high, bits) for bits in ((10, 23), (16,), (7,), (23,), (10, 10))),
        *((medium, bits) for bits in ((7, 23), (10,))),
        (with_matmul("highest"), (16,)),
        (with_matmul("medium", AMP_BF16), (7,)),
        (with_matmul("highest", TF32), (23, 10)),
        (with_matmul("medium", PURE_BF16), (23,)),
    ]
    proofs = []
    for precision, measured in rows:
        bits = dict(zip(("matmul", "convolution"), measured, strict=False))
        proofs.append((precision, bits, ModeProof(fp32_arithmetic=exact_or_rounded(bits), fp32_bits=bits)))
    for setting in ("highest", "high", "medium"):
        with fp32_arithmetic(matmul=setting, tf32=False):
            flags = {key: value for key, value in effective_flags(CPU).items() if key.startswith("mkldnn")}
        proofs += [(with_matmul(asked), flags, ModeProof(flags=flags)) for asked in ("highest", "high", "medium")]
    mixed = {"matmul_fp32_precision": "tf32", "cudnn_conv_fp32_precision": "ieee", "cudnn_benchmark": True}
    proofs += [(precision, mixed, ModeProof(flags=mixed)) for precision in (TF32, FP32)]
    text = ""
    for precision, facts, proof in proofs:
        text += f"{precision.mode}, fp32_matmul={precision.fp32_matmul}: {json.dumps(facts)}\n"
        text += "".join(f"    {sentence}\n" for sentence in contradictions(precision, proof))
    golden("contradictions.txt", text)


def test_operations_are_counted_by_their_arithmetic():
    for precision, expected in (
        (FP32, {"float32": 100}),
        (TF32, {"tf32": 100}),
        (with_matmul("high"), {"tf32": 70, "float32": 30}),
        (with_matmul("highest", TF32), {"float32": 70, "tf32": 30}),
        (with_matmul("medium"), {"bfloat16": 70, "float32": 30}),
    ):
        found = flops_by_arithmetic(precision, {"float32": 100, "float16": 7}, {"float32": 30})
        assert found == expected | {"float16": 7}
    # Without a count of convolutions their arithmetic may be unknown.
    flops = {"float32": 5, "bfloat16": 95}
    assert flops_by_arithmetic(with_matmul("high"), flops, None) == {"unknown": 5, "bfloat16": 95}
    assert flops_by_arithmetic(TF32, flops, None) == {"tf32": 5, "bfloat16": 95}
    assert flops_by_arithmetic(FP32, flops, None) == flops
    assert flops_by_arithmetic(with_matmul("medium", AMP_BF16), flops, {"bfloat16": 9}) == {"bfloat16": 100}
    assert dense_peak("NVIDIA H100 80GB HBM3", {"unknown": 5, "bfloat16": 95}) is None


MODELS = {
    "mlp": (lambda: MLP(in_features=16, hidden_size=16, out_features=16, num_layers=2), torch.randn(4, 16)),
    "gpt": (lambda: GPT(32, 16, 1, 64, 2, dropout=0.1), torch.arange(32).reshape(2, 16)),
    "llama": (lambda: Llama(32, 1, 64, 4, 2, 96), torch.arange(32).reshape(2, 16)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten()), torch.randn(2, 4, 8, 8)),
    "elementwise": (lambda: nn.LayerNorm(16), torch.randn(4, 16)),
}


def census(precision, name):
    """The operations that a step of a model computes under `precision`."""
    make, x = MODELS[name]
    precision = Precision(precision, "cpu")
    return traced(precision, make(), x.to(precision.parameters_dtype) if x.is_floating_point() else x)


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16"])
def test_a_mode_computes_each_model_in_its_dtype(mode):
    for model in MODELS if mode != "pure_fp16" else ("mlp",):  # whose convolutions take a CPU long
        assert contradictions(PRECISION_MODES[mode], census(mode, model)) == []


def test_operations_in_another_dtype_contradict():
    idle = "only 0% of the matmul and convolution operations ran in bfloat16, in which the mode computes"
    assert contradictions(AMP_BF16, census("fp32", "mlp")) == [idle]
    (found,) = contradictions(replace(AMP_BF16, dtype="float16"), census("amp_bf16", "gpt"))
    assert found.startswith("only 0% of the matmul")
    (found,) = contradictions(FP32, census("amp_bf16", "mlp"))
    assert found.endswith("ran in bfloat16, although the mode computes in float32")
    for share, text in ((0.997, "99.7%"), (0.5, "50.0%"), (0.012, "1.2%"), (2e-4, "0.020%")):
        flops = {"bfloat16": round(share * 10**6), "float32": round((1 - share) * 10**6)}
        (found,) = contradictions(FP32, ModeProof(flops=flops))
        assert found.startswith(f"{text} of the matmul")
    changed = replace(FP32, autocast=True, dtype="bfloat16")
    assert contradictions(changed, census(changed, "mlp")) == [], "the settings count, not the name of the mode"
