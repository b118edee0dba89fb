"""The time of a step: kernels by their work, the host that launches them, the link, and the range of it all."""

from dataclasses import replace

import numpy as np
import pytest

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.devices import DEVICES
from ampsweep.speed.fitted import FITTED
from ampsweep.speed.predicted_range import speedup
from ampsweep.speed.step_time import StepWork, elapsed_us

V100, A100, H100 = (DEVICES[name] for name in ("V100-SXM2-32", "A100-80", "H100"))


def product(m, n, k, dtype="float16", **changes):
    moved = 2 if dtype == "float16" else 4
    facts = {"flops": 2 * m * n * k, "read_bytes": moved * k * (m + n), "written_bytes": moved * m * n}
    made = OperatorWork("mm", "product", "forward", dtype, sizes=(1, m, n, k), num_kernels=1, **facts)
    return replace(made, **changes)


def elementwise(num_elements, dtype="float32", **changes):
    moved = num_elements * (2 if dtype == "float16" else 4)
    facts = {"read_bytes": moved, "written_bytes": moved, "num_elements": num_elements}
    return replace(OperatorWork("add", "elementwise", "forward", dtype, num_kernels=1, **facts), **changes)


def kernels_ms(*works, device=A100, tf32=False, compiled=False):
    return StepWork(works, compiled=compiled).kernels_us(device, tf32=tf32).sum() / 1e3


def queued(kernels, launching, waits, num_steps=40):
    """The time of a step by going through many, launch by launch."""
    host = device = 0.0
    ends = []
    for _ in range(num_steps):
        for place, (kernel, launch) in enumerate(zip(kernels, launching, strict=True)):
            host += launch
            device = max(device, host) + kernel
            host = device if place in waits else host
        ends.append(max(host, device))
    return (ends[-1] - ends[19]) / (num_steps - 20)


@pytest.mark.parametrize("num_waits", [0, 1, 4])
def test_a_step_takes_as_long_as_its_queue(num_waits):
    random = np.random.default_rng(num_waits)
    kernels, launching = random.exponential(1.0, 30), random.exponential(1.1, 30)
    waits = np.sort(random.choice(30, num_waits, replace=False))
    assert elapsed_us(kernels, launching, waits) == pytest.approx(queued(kernels, launching, {*waits}))


def test_a_large_product_runs_near_its_peak_and_never_above():
    flops = 2 * 8192**3
    for dtype, tf32, peak in (
        ("float16", False, A100.float16),
        ("float32", False, A100.float32),
        ("float32", True, A100.tf32),
    ):
        rate = flops / 1e9 / kernels_ms(product(8192, 8192, 8192, dtype), tf32=tf32)
        assert 0.5 * peak < rate <= peak


def test_what_makes_products_slow():
    fast = kernels_ms(product(4096, 4096, 4096))
    assert kernels_ms(product(4096, 4095, 4096)) > 1.01 * fast, "rows that tensor cores cannot load whole"
    assert kernels_ms(product(4096, 4096, 64)) > 2 * fast * 64 / 4096, "too little arithmetic for the bytes"
    few, one_more = (kernels_ms(product(128 * tiles, 128, 8192)) for tiles in (108, 109))
    assert one_more >= few, "a wave for one tile more"


def test_half_precision_halves_bytes_but_not_the_elements():
    ratio = kernels_ms(elementwise(2**26)) / kernels_ms(elementwise(2**26, "float16"))
    assert 1 < ratio <= 2


@pytest.mark.parametrize(
    ("dtype", "tf32", "peak"), [("float16", False, 312), ("float32", False, 19.5), ("float32", True, 156)]
)
def test_a_step_takes_at_least_its_arithmetic_and_its_bytes(dtype, tf32, peak):
    large, adding = product(8192, 8192, 8192, dtype), elementwise(2**26, "float16")
    step = StepWork([large, adding, elementwise(0, num_kernels=0)]).on(A100, tf32=tf32)
    computing_ms, moving_ms = large.flops / peak / 1e9, adding.num_bytes / 2039 / 1e6
    assert step.least_ms == pytest.approx(computing_ms + moving_ms, rel=1e-3)
    assert step.least_ms < kernels_ms(large, adding, tf32=tf32) <= step.step_ms.expected


def test_small_operators_are_bound_by_launching_and_say_so():
    step = StepWork([elementwise(1000)] * 500).on(A100)
    assert step.bound == "launch"
    assert step.step_ms.expected == pytest.approx((500 * FITTED.forward_us + FITTED.step_us) / 1e3)
    large = StepWork([product(8192, 8192, 8192)] * 20).on(A100)
    assert (large.bound, StepWork([elementwise(2**28)] * 20).on(A100).bound) == ("compute", "bandwidth")


def test_a_compiled_step_moves_fewer_bytes_in_fewer_launches():
    chain = [product(512, 512, 512), *(elementwise(2**22) for _ in range(10))] * 20
    assert kernels_ms(*chain, compiled=True) < 0.6 * kernels_ms(*chain)
    eager, compiled = (StepWork(chain, compiled=compiled).launching(FITTED).sum() for compiled in (False, True))
    assert compiled < eager / 2


def test_an_exchange_hides_behind_backward_as_far_as_that_goes():
    backward = product(8192, 8192, 8192, phase="backward")
    exchange = OperatorWork("allreduce_", "exchange", "backward", "float32", read_bytes=2**30)
    alone, hidden = StepWork([backward] * 10), StepWork([*[backward] * 10, exchange])
    assert hidden.on(A100, num_ranks=8).step_ms == alone.on(A100).step_ms
    exchange_us = StepWork([exchange]).exchange_us(A100, 8)
    assert exchange_us == pytest.approx(2 * 7 / 8 * 2**30 / 1e3 / A100.link_gb_per_sec)
    assert StepWork([exchange]).on(A100, num_ranks=8).step_ms.expected > exchange_us / 1e3


def test_ranges_hold_the_prediction_and_are_wider_where_nothing_was_fitted():
    work = StepWork([product(8192, 8192, 8192), elementwise(2**26)] * 10)
    known, unknown = work.on(A100), work.on(DEVICES["L4"])
    assert known.step_ms.low < known.step_ms.expected < known.step_ms.high
    assert (known.is_extrapolated, unknown.is_extrapolated) == (False, True)
    assert unknown.spread > known.spread
    slow, fast = (StepWork([product(8192, 8192, 8192, dtype)]).on(V100) for dtype in ("float32", "float16"))
    gain = speedup(slow.step_ms, fast.step_ms, 0.5)
    assert gain.low < gain.expected < gain.high
