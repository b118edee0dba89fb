"""Model arithmetic a second, and its share of a peak that is named."""

import pytest
import torch
from torch import nn

from ampsweep.metrics import METRICS
from ampsweep.monitors import device_peaks
from ampsweep.monitors.device_peaks import Efficiency, dense_peak
from ampsweep.observe.step import trace_step

CPU = torch.device("cpu")
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def on_h100(monkeypatch):
    monkeypatch.setattr(device_peaks, "device_name", lambda device: H100)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops_per_sec"),
    [
        (H100, "float32", 66.9),
        (H100, "tf32", 494.7),
        (H100, "bfloat16", 989.4),
        (H100, "float8_e4m3fn", 1978.9),
        ("NVIDIA H200", "float16", 989.4),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("A100-SXM4-40GB", "float16", 312.0),
        ("Tesla T4", "float16", 65.0),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA B200", "tf32", 1125.0),
        ("NVIDIA B300 SXM6 AC", "bfloat16", 2250.0),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA GeForce RTX 5090", "bfloat16", 209.6),
        ("NVIDIA GeForce RTX 5080", "tf32", 56.3),
    ],
)
def test_a_peak_is_that_of_the_device_and_its_arithmetic(name, dtype, tflops_per_sec):
    peak = dense_peak(name, {dtype: 10**12})
    assert peak.tflops_per_sec == pytest.approx(tflops_per_sec)
    assert list(peak.by_dtype.values()) == [tflops_per_sec]
    assert "NVIDIA" in peak.source


@pytest.mark.parametrize(
    ("name", "ai_tops"),
    [("5090", 3352), ("5080", 1801), ("5070 Ti", 1406), ("5070", 988), ("5060 Ti", 759), ("5060", 614)],
)
def test_half_precision_is_a_sixteenth_of_the_advertised(name, ai_tops):
    """FP4 with sparsity and half the accumulator: 2 times for each of FP4, FP8, sparsity and a float16 sum."""
    peak = dense_peak(f"NVIDIA GeForce RTX {name}", {"bfloat16": 1})
    assert peak.tflops_per_sec == pytest.approx(ai_tops / 16, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("AMD EPYC 9654 96-Core Processor", {"float32": 1}),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {"float16": 1}),
        ("NVIDIA A10G", {"float16": 1}),
        ("Tesla T4", {"bfloat16": 1}),
        ("Tesla V100-SXM2-16GB", {"tf32": 1}),
        (H100, {"float64": 1}),
        (H100, {"float16": 1, "int8": 1}),
        (H100, {}),
    ],
)
def test_what_the_table_does_not_know_has_no_peak(name, flops):
    assert dense_peak(name, flops) is None


def test_the_peak_of_a_mix_takes_the_time_of_its_parts():
    flops = {"float32": 669, "bfloat16": 9894}  # ten time units each
    peak = dense_peak(H100, flops)
    assert peak.tflops_per_sec == pytest.approx((669 + 9894) / 20)
    assert peak.by_dtype == {"float32": 66.9, "bfloat16": 989.4}


def test_mfu_is_the_rate_over_the_peak_named_in_the_proof(on_h100):
    half = Efficiency(CPU, {"bfloat16": 4947 * 10**8})
    figures = half.figures(step_ms=1.0)
    assert figures == {"perf/tflops_per_sec": pytest.approx(494.7), "perf/mfu_pct": pytest.approx(50)}
    assert set(figures) <= set(METRICS)
    peak = half.proof()
    assert peak["by_dtype"] == {"bfloat16": 989.4}
    assert set(peak) == {"tflops_per_sec", "by_dtype", "source"}


def test_after_an_mfu_over_100_percent_there_is_none(on_h100):
    wrong = Efficiency(CPU, {"float32": 10**12})
    assert "perf/mfu_pct" in wrong.figures(step_ms=16.0)
    assert wrong.figures(step_ms=10.0) == {"perf/tflops_per_sec": pytest.approx(100)}
    assert "perf/mfu_pct" not in wrong.figures(step_ms=16.0)


def test_on_a_cpu_the_rate_is_told_and_no_share():
    model = nn.Linear(8, 3)
    with trace_step(model) as trace:
        model(torch.randn(5, 8, requires_grad=True)).sum().backward()
    cpu = Efficiency(CPU, trace.result.model_flops)
    assert cpu.figures(step_ms=2.0) == {"perf/tflops_per_sec": pytest.approx(3 * 2 * 5 * 8 * 3 / 1e12 / 0.002)}
    assert cpu.proof() is None


def test_a_model_without_matrices_has_no_rate(on_h100):
    assert Efficiency(CPU, {}).figures(step_ms=1.0) == {}
