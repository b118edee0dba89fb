"""Step times are those of the steps alone, and the summary is that of the steady ones."""

import time

import numpy as np
import pytest
import torch
from devices import needs_cuda

from ampsweep.monitors import step_clock
from ampsweep.monitors.step_clock import StepClock

CPU = torch.device("cpu")


def clock(tokens_per_step=None, *, is_warm=True):
    clock = StepClock(CPU, samples_per_step=8, tokens_per_step=tokens_per_step)
    if is_warm:
        clock.end_warmup()
    return clock


def take_step(clock, seconds):
    clock.begin()
    time.sleep(seconds)
    clock.end()


def window(clock):
    clock.cut()
    (figures,) = clock.windows()
    return figures


def test_time_between_steps_counts_in_throughput_alone():
    c = clock(tokens_per_step=512)
    take_step(c, 0.002)
    time.sleep(0.05)  # an evaluation
    c.restart()
    time.sleep(0.02)
    take_step(c, 0.002)
    for figures in (window(c), c.summary()):
        assert 2 <= figures["perf/step_ms"] < 20
        assert 16 / 0.07 < figures["perf/samples_per_sec"] < 16 / 0.024
        assert figures["perf/tokens_per_sec"] == pytest.approx(64 * figures["perf/samples_per_sec"])


def test_work_without_tokens_has_no_token_throughput():
    c = clock()
    take_step(c, 0)
    assert "perf/tokens_per_sec" not in window(c) | c.summary()


def test_warmup_is_in_the_rows_and_not_in_the_summary():
    c = clock(is_warm=False)
    for seconds in (0.05, 0.05, 0.001, 0.001):
        take_step(c, seconds)
        if seconds > 0.01:
            c.end_warmup()
    assert window(c)["perf/step_ms"] > 20
    assert c.summary()["perf/step_ms"] < 40


@pytest.mark.parametrize("num_marked", [1, 2])
def test_marked_steps_are_warmup(num_marked):
    c = clock()
    for seconds in (0.001, *[0.05] * num_marked):
        take_step(c, seconds)
    c.mark_warmup(num_marked)
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
    c = clock(is_warm=False)
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
    together, one_by_one, expected = clock(is_warm=False), clock(is_warm=False), []
    waits = [[0.01, 0.02], [], [0.03], [0.04, 0.05, 0.06]]
    for of_window in waits:
        for data_wait_s in of_window:
            for each in (together, one_by_one):
                each.begin()
                each.end(data_wait_s)
                if data_wait_s == 0.01:
                    each.end_warmup()
        together.cut()
        expected.append(window(one_by_one).get("perf/data_wait_ms"))
    assert [figures.get("perf/data_wait_ms") for figures in together.windows()] == expected
    assert expected == pytest.approx([15, None, 30, 50])
    assert together.windows() == []
    assert together.summary()["perf/data_wait_ms"] == pytest.approx(40)


class Queue:
    """A device that works for some seconds a step once the host has launched it, with time of its own making."""

    def __init__(self, monkeypatch):
        self.now_s = self.free_s = 0.0
        monkeypatch.setattr(step_clock, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(torch, "get_device_module", lambda device: self)

    def current_stream(self, device):
        return self

    def Event(self, *, enable_timing):  # noqa: N802
        assert enable_timing
        return Event(self)

    def step(self, clock, *, host_s, device_s):
        clock.begin()
        self.launch(host_s=host_s, device_s=device_s)
        clock.end()

    def launch(self, *, host_s, device_s):
        self.now_s += host_s / 2  # until the first launch
        self.free_s = max(self.free_s, self.now_s) + device_s
        self.now_s += host_s / 2
        self.free_s = max(self.free_s, self.now_s)


class Event:
    def __init__(self, queue):
        self.queue = queue

    def record(self, stream):
        self.at_s = max(stream.now_s, stream.free_s)

    def query(self):
        return self.at_s <= self.queue.now_s

    def synchronize(self):
        self.queue.now_s = max(self.queue.now_s, self.at_s)

    def elapsed_time(self, end):
        return 1e3 * (end.at_s - self.at_s)


def queued_clock(monkeypatch):
    queue = Queue(monkeypatch)
    c = StepClock(torch.device("cuda", 0), samples_per_step=8, tokens_per_step=None)
    return queue, c


def test_a_step_after_a_wait_tells_only_of_launching(monkeypatch):
    queue, c = queued_clock(monkeypatch)
    c.end_warmup()
    for _ in range(4):  # ten steps, then rows are read
        for _ in range(10):
            queue.step(c, host_s=0.004, device_s=0.010)
        c.wait()
        c.cut()
        c.windows()
        queue.now_s += 0.001
    assert max(c._steady.step_ms) == pytest.approx(12), "the device waits for the first launch"
    summary = c.summary()
    assert (summary["perf/step_ms"], summary["perf/step_ms_p95"]) == pytest.approx((10, 10))
    assert summary["perf/launch_ms"] == pytest.approx(4)
    assert summary["perf/device_lag_ms"] == pytest.approx(60, abs=4)
    assert not c.waits_for_host


@pytest.mark.parametrize(
    ("device_s", "own_s", "step_s", "overhead_s"),
    [(0.001, 0, 0.005, 0.001), (0.001, 0.001, 0.006, 0.002), (0.010, 0, 0.010, 0), (0.010, 0.001, 0.0105, 0.0005)],
)
def test_overhead_is_what_the_device_loses_by_it(monkeypatch, device_s, own_s, step_s, overhead_s):
    queue, c = queued_clock(monkeypatch)
    c.end_warmup()
    for _ in range(200):
        c.begin()
        queue.launch(host_s=0.004, device_s=device_s)
        began = c.now()
        queue.launch(host_s=own_s, device_s=own_s / 2)
        c.own(began)
        c.end()
        queue.now_s += 0.001
    assert c.summary()["perf/samples_per_sec"] == pytest.approx(8 / step_s, rel=0.01)
    assert c.overhead()["instrumentation/overhead_pct"] == pytest.approx(100 * overhead_s / step_s, abs=0.2)


def test_where_every_step_is_waited_for_all_count(monkeypatch):
    queue, c = queued_clock(monkeypatch)
    c.end_warmup()
    for device_s in (0.008, 0.018, 0.028):
        queue.step(c, host_s=0.004, device_s=device_s)
        c.wait()
        c.cut()
        c.windows()
    assert c.summary()["perf/step_ms"] == pytest.approx(20)


def test_a_device_that_waits_for_its_host_is_not_behind_it(monkeypatch):
    queue, c = queued_clock(monkeypatch)
    for num_steps in range(30):
        if num_steps == 10:
            c.end_warmup()
        queue.step(c, host_s=0.004, device_s=0.001)
        if num_steps % 5 == 4:
            queue.now_s += 0.001  # of making a row
            c.wait()
            c.wait()  # of an evaluation that was there before
    summary = c.summary()
    assert summary["perf/device_lag_ms"] == 0
    assert c.waits_for_host
    assert summary["perf/launch_ms"] == summary["perf/step_ms"] == pytest.approx(4)


def test_waiting_for_data_is_no_launching(monkeypatch):
    queue, c = queued_clock(monkeypatch)
    c.end_warmup()
    for _ in range(3):
        c.begin()
        queue.now_s += 0.005
        c.end(data_wait_s=0.002)
        c.wait()
    assert c.summary()["perf/launch_ms"] == pytest.approx(3)


def test_on_the_host_nothing_is_launched():
    c = clock()
    for _ in range(3):
        take_step(c, 0.001)
        c.wait()
    assert not {"perf/launch_ms", "perf/device_lag_ms"} & c.summary().keys()
    assert not c.waits_for_host


@needs_cuda
def test_cuda_steps_last_as_long_as_their_kernels():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    c = StepClock(device, samples_per_step=8, tokens_per_step=None)
    c.end_warmup()
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
    assert 6 * summary["perf/step_ms"] == pytest.approx(total_ms, rel=0.5)


@needs_cuda
@pytest.mark.parametrize(("width", "waits_for_host"), [(8, True), (8192, False)])
def test_cuda_tells_whether_it_waits_for_the_host(width, waits_for_host):
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    c = StepClock(device, samples_per_step=8, tokens_per_step=None)
    x = torch.randn(width, width, device=device)
    for num_steps in range(30):
        if num_steps == 5:
            c.end_warmup()
        c.begin()
        for _ in range(100):
            x.mul(0.5)
        c.end()
        if num_steps % 5 == 4:
            c.wait()
            c.cut()
            c.windows()
    summary = c.summary()
    assert c.waits_for_host == waits_for_host
    assert (summary["perf/launch_ms"] > 0.5 * summary["perf/step_ms"]) == waits_for_host
