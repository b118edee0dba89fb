"""Model FLOP/s, and their share of a peak with a named source."""

import pytest
import torch

from ampsweep.metrics import METRICS
from ampsweep.monitors import device_peaks
from ampsweep.monitors.device_peaks import Efficiency, dense_peak

CPU = torch.device("cpu")
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "dtype", "tflops_per_sec"),
    [
        (H100, "tf32", 494.7),
        (H100, "float8_e4m3fn", 1978.9),
        ("A100-SXM4-40GB", "float16", 311.9),
        ("Tesla T4", "float16", 65.1),
    ],
)
def test_a_peak_is_that_of_the_device_and_its_arithmetic(name, dtype, tflops_per_sec):
    peak = dense_peak(name, {dtype: 10**12})
    assert peak.tflops_per_sec == pytest.approx(tflops_per_sec)
    assert peak.by_dtype == {dtype.partition("_")[0]: tflops_per_sec}
    assert "NVIDIA" in peak.source


def test_unknown_devices_and_dtypes_have_no_peak():
    unknown = {
        "AMD EPYC 9654 96-Core Processor": {"float32": 1},
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": {"float16": 1},
        "Tesla T4": {"bfloat16": 1},
        H100: {"float16": 1, "int8": 1},
        "NVIDIA H200": {},
    }
    assert not any(dense_peak(name, flops) for name, flops in unknown.items())


def test_mfu_is_the_rate_over_the_peak_of_the_mix(monkeypatch):
    assert Efficiency(CPU, {}).figures(step_ms=1.0) == {}, "a model without matrices"
    cpu = Efficiency(CPU, {"float32": 10**9})
    assert (cpu.figures(step_ms=2.0), cpu.proof()) == ({"perf/tflops_per_sec": 0.5}, None)

    monkeypatch.setattr(device_peaks, "device_name", lambda device: H100)
    mixed = Efficiency(CPU, {"float32": 669 * 10**8, "bfloat16": 9894 * 10**8})  # a millisecond each
    figures = mixed.figures(step_ms=4.0)
    rate = pytest.approx((66.9 + 989.4) / 4)
    assert figures == {"perf/tflops_per_sec": rate, "perf/mfu_pct": pytest.approx(50)}
    assert set(figures) <= set(METRICS)
    proof = mixed.proof()
    assert proof["by_dtype"] == {"float32": 66.9, "bfloat16": 989.4}
    assert set(proof) == {"tflops_per_sec", "by_dtype", "source"}

    assert "perf/mfu_pct" not in mixed.figures(step_ms=1.9), "over 100 percent a figure is wrong"
    assert "perf/mfu_pct" not in mixed.figures(step_ms=4.0), "from then on there is none"
