"""What a calibration says of works that were not measured."""

from dataclasses import replace

import numpy as np
import pytest

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.calibration import Calibration, MeasuredWork
from ampsweep.speed.devices import DEVICES
from ampsweep.speed.fitted import FITTED
from ampsweep.speed.kernel_times import Works, kernel_times
from ampsweep.speed.step_time import StepWork

A100 = DEVICES["A100-80"]
CPU = replace(A100, name="a CPU", driver_names=(), architecture="cpu")
RATE = 5e5  # floating-point operations in a microsecond


def product(m, k=256, dtype="float32"):
    moved = {
        "read_bytes": 4 * (m * k + k * k),
        "written_bytes": 4 * m * k,
        "num_elements": m * k,
    }
    return OperatorWork("mm", "product", "forward", dtype, 2 * m * k * k, **moved, sizes=(1, m, k, k), num_kernels=1)


def relu(num_elements):
    moved = {"read_bytes": 4 * num_elements, "written_bytes": 4 * num_elements, "num_elements": num_elements}
    return OperatorWork("relu", "elementwise", "forward", "float32", **moved, num_kernels=1)


def calibration(times, device=CPU, tf32=False, **facts):
    measured = tuple(MeasuredWork(work, us, tf32) for work, us in times.items())
    return Calibration(device, measured, **{"call_us": 5.0} | facts)


def times(of, *works, tf32=False):
    return of.kernel_times(works, FITTED, tf32=tf32).tolist()


def test_a_measured_work_takes_as_long_as_it_was_measured():
    measured = {product(64): 120.0, product(512): 700.0, relu(10**6): 900.0}
    assert times(calibration(measured), *measured) == pytest.approx([*measured.values()], rel=0.01)


def test_between_measured_sizes_a_work_is_as_efficient_as_they_are():
    """Products at 40 % and at 60 % of the rate of large ones."""
    works = product(64), product(1024)
    us = [work.flops / RATE / share for work, share in zip(works, (0.4, 0.6), strict=True)]
    (between,) = times(calibration(dict(zip(works, us, strict=True))), product(256))
    assert 0.4 < product(256).flops / RATE / between < 0.6


def test_works_of_another_kind_count_only_if_none_is_like_it():
    fast, slow = {product(128): 168.0}, {relu(10**5): 40_000.0}
    assert times(calibration(fast | slow), product(128)) == times(calibration(fast), product(128))
    assert times(calibration(slow), product(128))[0] > 100 * times(calibration(fast), product(128))[0]


def test_a_gpu_that_is_slower_than_the_model_says_is_so_for_all_sizes():
    measured, asked = [product(m, dtype="bfloat16") for m in (256, 1024, 8192)], product(4096, dtype="bfloat16")
    modelled = kernel_times(Works([*measured, asked]), A100, FITTED, tf32=False)
    slower = calibration({work: 1.3 * us for work, us in zip(measured, modelled, strict=False)}, A100)
    assert times(slower, asked)[0] == pytest.approx(1.3 * modelled[-1])


def test_products_in_tf32_are_measured_apart():
    exact, quick = (calibration({product(512): us}, tf32=us < 300).measured for us in (700.0, 90.0))
    both = replace(calibration({}), measured=exact + quick)
    assert times(both, product(512)) == pytest.approx([700.0], rel=0.01)
    assert times(both, product(512), tf32=True) == pytest.approx([90.0], rel=0.01)


def test_a_cpu_is_its_own_host_and_a_gpu_is_launched_ahead():
    step = StepWork([product(512)] * 10)
    of_cpu, of_gpu = (calibration({product(512): 700.0}, device, spread=0.1) for device in (CPU, A100))
    on_cpu, on_gpu = (step.on(of.device, calibration=of) for of in (of_cpu, of_gpu))
    assert on_cpu.step_ms.expected == pytest.approx(7.0 + 10 * 0.005, rel=0.001)
    assert on_gpu.step_ms.expected == pytest.approx(7.0, rel=0.01)
    assert on_gpu.step_ms.high / on_gpu.step_ms.expected == pytest.approx(np.exp(0.1 * 1.645), rel=0.01)
