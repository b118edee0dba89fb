"""Model FLOP/s, and their share of a peak with a named source."""

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


def test_a_peak_is_that_of_the_device_and_its_arithmetic():
    for name, dtype, tflops_per_sec in (
        (H100, "float32", 66.9),
        (H100, "tf32", 494.7),
        (H100, "float8_e4m3fn", 1978.9),
        ("NVIDIA H200", "float16", 989.4),
        ("A100-SXM4-40GB", "float16", 312.0),
        ("Tesla T4", "float16", 65.0),
        ("NVIDIA B300 SXM6 AC", "bfloat16", 2250.0),
    ):
        peak = dense_peak(name, {dtype: 10**12})
        assert peak.tflops_per_sec == pytest.approx(tflops_per_sec)
        assert list(peak.by_dtype.values()) == [tflops_per_sec]
        assert "NVIDIA" in peak.source
    # FP4 with sparsity and half the accumulator: 2 times for each of FP4, FP8, sparsity and a float16 sum.
    advertised = {"5090": 3352, "5080": 1801, "5070 Ti": 1406, "5070": 988, "5060 Ti": 759, "5060": 614}
    for name, ai_tops in advertised.items():
        peak = dense_peak(f"NVIDIA GeForce RTX {name}", {"bfloat16": 1})
        assert peak.tflops_per_sec == pytest.approx(ai_tops / 16, rel=2e-3)


def test_unknown_devices_and_dtypes_have_no_peak():
    for name, flops in (
        ("AMD EPYC 9654 96-Core Processor", {"float32": 1}),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {"float16": 1}),
        ("Tesla T4", {"bfloat16": 1}),
        (H100, {"float16": 1, "int8": 1}),
        (H100, {}),
    ):
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


def test_on_a_cpu_there_is_a_rate_and_no_share(on_h100, monkeypatch):
    assert Efficiency(CPU, {}).figures(step_ms=1.0) == {}, "a model without matrices"
    monkeypatch.undo()
    model = nn.Linear(8, 3)
    with trace_step(model) as trace:
        model(torch.randn(5, 8, requires_grad=True)).sum().backward()
    cpu = Efficiency(CPU, trace.result.model_flops)
    assert cpu.figures(step_ms=2.0) == {"perf/tflops_per_sec": pytest.approx(3 * 2 * 5 * 8 * 3 / 1e12 / 0.002)}
    assert cpu.proof() is None
