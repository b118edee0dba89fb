"""Step times are those of the steps alone, and the summary is that of the steady steps."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from devices import needs_cuda

from ampsweep.monitors import step_clock
from ampsweep.monitors.step_clock import StepClock


class Queue:
    """A device that works for some seconds a step once the host has launched it, in simulated time."""

    def __init__(self):
        self.now_s = self.free_s = 0.0

    def current_stream(self, device):
        return self

    def Event(self, *, enable_timing):  # noqa: N802
        assert enable_timing
        event = SimpleNamespace(query=lambda: event.at_s <= self.now_s)
        event.record = lambda stream: setattr(event, "at_s", max(self.now_s, self.free_s))
        event.synchronize = lambda: setattr(self, "now_s", max(self.now_s, event.at_s))
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    def launch(self, *, host_s, device_s):
        self.now_s += host_s / 2  # until the first launch
        self.free_s = max(self.free_s, self.now_s) + device_s
        self.now_s += host_s / 2
        self.free_s = max(self.free_s, self.now_s)

    def step(self, clock, *, data_wait_s=0.0, **times):
        clock.begin()
        self.launch(**times)
        clock.end(data_wait_s)

    def take(self, clock, *seconds):
        for length in seconds:
            clock.begin()
            self.now_s += length
            clock.end()


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(step_clock, "perf_counter", lambda: queue.now_s)
    monkeypatch.setattr(torch, "get_device_module", lambda device: queue)
    return queue


def warm_clock(device, tokens_per_step=None):
    clock = StepClock(torch.device(device), samples_per_step=8, tokens_per_step=tokens_per_step)
    clock.end_warmup()
    return clock


@pytest.fixture
def clock(queue):
    return warm_clock("cpu", tokens_per_step=512)


@pytest.fixture
def queued(queue):
    return warm_clock("cuda:0")


def window(clock):
    clock.cut()
    (figures,) = clock.windows()
    return figures


def test_time_between_steps_counts_in_throughput_alone(clock, queue):
    queue.take(clock, 2)
    queue.now_s += 50  # an evaluation
    clock.restart()
    queue.now_s += 4
    queue.take(clock, 2)
    expected = {"perf/step_ms": 2000, "perf/data_wait_ms": 0, "perf/samples_per_sec": 2, "perf/tokens_per_sec": 128}
    assert window(clock) == expected
    assert clock.summary() == expected | {"perf/step_ms_iqr": 0, "perf/step_ms_p95": 2000}
    without_tokens = warm_clock("cpu")
    queue.take(without_tokens, 1)
    assert "perf/tokens_per_sec" not in window(without_tokens)


def test_warmup_and_marked_steps_are_in_the_rows_alone(queue, clock):
    clock._is_warm = False
    queue.take(clock, 50)
    assert clock.summary() == {}, "no steady step yet"
    clock.end_warmup()
    queue.take(clock, 1, 1, 50)
    clock.mark_warmup()
    clock.mark_warmup(num_steps=0)
    queue.take(clock, 1, 50, 50)
    clock.mark_warmup(2)
    assert window(clock)["perf/step_ms"] == pytest.approx(1e3 * 203 / 7)
    assert (clock.summary()["perf/step_ms"], clock.summary()["perf/step_ms_p95"]) == (1000, 1000)


def test_a_window_begins_where_the_last_one_ended(clock, queue):
    queue.take(clock, 50)
    clock.mark_traced()
    assert window(clock) == clock.summary() == {}, "a traced step is in no figure"
    for seconds in (5, 1):
        queue.take(clock, seconds)
        assert window(clock)["perf/step_ms"] == 1000 * seconds
    clock.begin()
    queue.now_s += 10
    assert window(clock) == {}, "the step has not ended"
    clock.end()
    assert window(clock)["perf/step_ms"] == 10_000
    clock.begin()  # a step that fails has no time
    queue.take(clock, 1)
    assert window(clock)["perf/step_ms"] == 1000


def test_quantiles_are_those_of_numpy(clock, queue):
    times = np.random.default_rng(0).uniform(0, 2, size=30)
    queue.take(clock, *times)
    lower, middle, upper, p95 = np.quantile(1e3 * times, (0.25, 0.5, 0.75, 0.95))
    expected = {"perf/step_ms": middle, "perf/step_ms_p95": p95, "perf/step_ms_iqr": upper - lower}
    assert {key: clock.summary()[key] for key in expected} == pytest.approx(expected)


def test_waits_for_data_and_ranks_are_averaged_by_window(clock, queue):
    for of_window in ([0.01, 0.02], [], [0.03], [0.04, 0.05, 0.06]):
        for data_wait_s in of_window:
            clock.begin()
            start = clock.now()
            queue.now_s += 0.1
            clock.end(data_wait_s, waits=[(start, clock.now()), (start, start)])
        clock.cut()
    windows = clock.windows()
    assert [figures.get("perf/data_wait_ms") for figures in windows] == pytest.approx([15, None, 30, 50])
    assert [figures.get("perf/communication_ms") for figures in windows] == pytest.approx([100, None, 100, 100])
    assert clock.windows() == []
    assert clock.summary()["perf/data_wait_ms"] == pytest.approx(35)
    assert clock.summary()["perf/communication_ms"] == pytest.approx(100)
    assert clock.idle_share(between_steps=False) == pytest.approx(0.35)


def test_a_step_after_a_wait_measures_launching_alone(queue, queued):
    for _ in range(4):  # ten steps, then rows are read
        for _ in range(10):
            queue.step(queued, host_s=0.004, device_s=0.010)
        queued.wait()
        queued.cut()
        queued.windows()
        queue.now_s += 0.001
    assert max(queued._steady.step_ms) == pytest.approx(12), "the device waits for the first launch"
    summary = queued.summary()
    assert (summary["perf/step_ms"], summary["perf/step_ms_p95"]) == pytest.approx((10, 10))
    assert summary["perf/launch_ms"] == pytest.approx(4)
    assert summary["perf/device_lag_ms"] == pytest.approx(60, abs=4)
    assert not queued.waits_for_host


@pytest.mark.parametrize(
    ("device_s", "own_s", "step_s", "overhead_s"),
    [(0.001, 0.001, 0.006, 0.002), (0.010, 0, 0.010, 0), (0.010, 0.001, 0.0105, 0.0005)],
)
def test_overhead_is_the_time_that_the_device_loses(queue, queued, device_s, own_s, step_s, overhead_s):
    for _ in range(200):
        queued.begin()
        queue.launch(host_s=0.004, device_s=device_s)
        began = queued.now()
        queue.launch(host_s=own_s, device_s=own_s / 2)
        queued.own(began)
        queued.end()
        queue.now_s += 0.001
    assert queued.summary()["perf/samples_per_sec"] == pytest.approx(8 / step_s, rel=0.01)
    assert queued.overhead()["instrumentation/overhead_pct"] == pytest.approx(100 * overhead_s / step_s, abs=0.2)


def test_a_launch_bound_device_waits_for_its_host(queue, queued, clock):
    for num_steps in range(30):
        queue.step(queued, host_s=0.004, device_s=0.001)
        if num_steps % 5 == 4:
            queue.now_s += 0.001  # of making a row
            queued.wait()
            queued.wait()  # of an evaluation that was there before
    summary = queued.summary()
    assert summary["perf/device_lag_ms"] == 0
    assert queued.waits_for_host
    assert summary["perf/launch_ms"] == summary["perf/step_ms"] == pytest.approx(4)
    queue.take(clock, 1, 1)
    clock.wait()
    assert not {"perf/launch_ms", "perf/device_lag_ms"} & clock.summary().keys(), "nothing is launched on the host"
    assert not clock.waits_for_host


def test_all_steps_count_where_each_is_waited_for(queue, queued):
    for device_s in (0.008, 0.018, 0.028):
        queue.step(queued, host_s=0.004, device_s=device_s, data_wait_s=0.001)
        queued.wait()
    assert queued.summary()["perf/step_ms"] == pytest.approx(20)
    assert queued.summary()["perf/launch_ms"] == pytest.approx(3), "waiting for data is no launching"


@needs_cuda
@pytest.mark.parametrize(("width", "waits_for_host"), [(8, True), (8192, False)])
def test_cuda_steps_last_as_long_as_their_kernels(width, waits_for_host):
    clock, x = warm_clock("cuda"), torch.randn(width, width, device="cuda")
    began = time.perf_counter()
    for num_steps in range(30):
        clock.begin()
        for _ in range(100):
            x.mul(0.5)
        clock.end()
        if num_steps % 5 == 4:
            clock.wait()
    assert 30 * clock.summary()["perf/step_ms"] == pytest.approx(1e3 * (time.perf_counter() - began), rel=0.5)
    assert clock.waits_for_host == waits_for_host
