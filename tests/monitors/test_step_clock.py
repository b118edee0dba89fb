"""Step times are those of the steps alone, and the summary is that of the steady ones."""

import time

import numpy as np
import pytest
import torch
from devices import needs_cuda

from ampsweep.monitors.step_clock import StepClock

CPU = torch.device("cpu")


def clock(warmup_steps=0, tokens_per_step=None):
    return StepClock(CPU, warmup_steps, samples_per_step=8, tokens_per_step=tokens_per_step)


def take_step(clock, seconds):
    clock.begin()
    time.sleep(seconds)
    clock.end()


def window(clock):
    clock.cut()
    (figures,) = clock.windows()
    return figures


def test_time_between_steps_is_not_counted():
    c = clock()
    for _ in range(3):
        take_step(c, 0.002)
        time.sleep(0.05)
    assert 2 <= c.summary()["perf/step_ms"] < 50


def test_throughput_belongs_to_the_step_time():
    c = clock(tokens_per_step=512)
    take_step(c, 0.001)
    for figures in (window(c), c.summary()):
        assert figures["perf/samples_per_sec"] == pytest.approx(8e3 / figures["perf/step_ms"])
        assert figures["perf/tokens_per_sec"] == pytest.approx(512e3 / figures["perf/step_ms"])


def test_work_without_tokens_has_no_token_throughput():
    c = clock()
    take_step(c, 0)
    assert "perf/tokens_per_sec" not in window(c) | c.summary()


def test_warmup_is_in_the_rows_and_not_in_the_summary():
    c = clock(warmup_steps=2)
    for seconds in (0.05, 0.05, 0.001, 0.001):
        take_step(c, seconds)
    assert window(c)["perf/step_ms"] > 20
    assert c.summary()["perf/step_ms"] < 40


def test_a_marked_step_is_warmup():
    c = clock()
    take_step(c, 0.05)
    c.mark_warmup()
    take_step(c, 0.001)
    assert window(c)["perf/step_ms"] > 20
    assert c.summary()["perf/step_ms_p95"] < 40


def test_several_steps_can_be_marked_at_once():
    c = clock()
    for seconds in (0.001, 0.05, 0.05):
        take_step(c, seconds)
    c.mark_warmup(num_steps=2)
    c.mark_warmup(num_steps=0)
    assert window(c)["perf/step_ms"] > 20
    assert c.summary()["perf/step_ms_p95"] < 40


def test_a_traced_step_is_in_no_figure():
    c = clock()
    take_step(c, 0.05)
    c.mark_traced()
    assert window(c) == {}
    assert c.summary() == {}
    take_step(c, 0.001)
    assert window(c)["perf/step_ms"] < 40


def test_without_a_steady_step_there_is_no_summary():
    c = clock(warmup_steps=10)
    take_step(c, 0)
    assert c.summary() == {}


def test_a_window_begins_where_the_last_one_ended():
    c = clock()
    assert window(c) == {}
    take_step(c, 0.05)
    assert window(c)["perf/step_ms"] >= 50
    take_step(c, 0.001)
    assert window(c)["perf/step_ms"] < 40
    assert window(c) == {}


def test_a_step_that_failed_has_no_time():
    c = clock()
    c.begin()
    assert window(c) == {}
    take_step(c, 0.001)
    assert window(c)["perf/step_ms"] < 40
    assert c.summary()["perf/step_ms_iqr"] == 0


def test_a_window_read_within_a_step_leaves_it_whole():
    c = clock()
    c.begin()
    time.sleep(0.01)
    assert window(c) == {}
    c.end()
    assert window(c)["perf/step_ms"] >= 10


def test_waiting_for_data_is_a_mean():
    c = clock(warmup_steps=1)
    for wait_s in (0.5, 0, 0, 0.03):
        c.begin()
        c.end(data_wait_s=wait_s)
    assert window(c)["perf/data_wait_ms"] == pytest.approx(530 / 4)
    assert c.summary()["perf/data_wait_ms"] == pytest.approx(10)


def test_quantiles_are_those_of_numpy():
    c = clock()
    times = []
    for seconds in np.random.default_rng(0).uniform(0, 0.002, size=30):
        take_step(c, seconds)
        times.append(window(c)["perf/step_ms"])
    summary = c.summary()
    assert summary["perf/step_ms"] == pytest.approx(np.quantile(times, 0.5))
    assert summary["perf/step_ms_p95"] == pytest.approx(np.quantile(times, 0.95))
    assert summary["perf/step_ms_iqr"] == pytest.approx(np.quantile(times, 0.75) - np.quantile(times, 0.25))


def test_windows_read_together_are_those_read_one_by_one():
    together, one_by_one, expected = clock(warmup_steps=1), clock(warmup_steps=1), []
    waits = [[0.01, 0.02], [], [0.03], [0.04, 0.05, 0.06]]
    for of_window in waits:
        for data_wait_s in of_window:
            for each in (together, one_by_one):
                each.begin()
                each.end(data_wait_s)
        together.cut()
        expected.append(window(one_by_one).get("perf/data_wait_ms"))
    assert [figures.get("perf/data_wait_ms") for figures in together.windows()] == expected
    assert expected == pytest.approx([15, None, 30, 50])
    assert together.windows() == []
    assert together.summary()["perf/data_wait_ms"] == pytest.approx(40)


@needs_cuda
def test_cuda_steps_last_as_long_as_their_kernels():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    c = StepClock(device, warmup_steps=1, samples_per_step=8, tokens_per_step=None)
    x = torch.randn(4096, 4096, device=device)
    x @ x
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    began = time.perf_counter()
    try:
        for _ in range(6):
            c.begin()
            for _ in range(20):
                x @ x
            c.end()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    issued_ms = 1e3 * (time.perf_counter() - began)
    summary = c.summary()
    total_ms = 1e3 * (time.perf_counter() - began)
    assert issued_ms < total_ms / 2
    assert 5 * summary["perf/step_ms"] == pytest.approx(total_ms * 5 / 6, rel=0.5)
