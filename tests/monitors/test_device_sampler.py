"""The device is sampled in the background; what it does not tell is absent."""

import threading
import time
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import pytest
import torch
from devices import needs_cuda

from ampsweep.metrics import METRICS
from ampsweep.monitors.device_sampler import DeviceSampler
from ampsweep.monitors.processors import num_available_cores

CPU = torch.device("cpu")


def keep_busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def samples_while(work):
    with DeviceSampler(CPU, interval_s=0.02) as sampler:
        sampler.resume()
        work()
    return sampler.summary()


def test_one_busy_thread_uses_at_most_its_share_of_the_cores():
    busy = samples_while(lambda: keep_busy(0.3))["device/utilization_pct"]
    idle = samples_while(lambda: time.sleep(0.3))["device/utilization_pct"]
    assert idle < 10 < busy < 1.1 * 100 / num_available_cores() + 10


def test_on_the_cpu_only_this_process_is_sampled():
    found = samples_while(lambda: keep_busy(0.1))
    assert found.keys() == {"device/utilization_pct", "device/busy_cores", "memory/process_gib"} <= METRICS.keys()
    assert found["device/utilization_pct"] == pytest.approx(100 * found["device/busy_cores"] / num_available_cores())


def test_busy_cores_are_processor_time_over_wall_time():
    def work_and_rest():
        keep_busy(0.15)
        time.sleep(0.15)

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with DeviceSampler(CPU, interval_s=0.02) as sampler:
        sampler.resume()
        work_and_rest()
    share = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
    assert sampler.summary()["device/busy_cores"] == pytest.approx(share, abs=0.05)


def test_the_memory_of_the_process_is_its_most():
    with DeviceSampler(CPU, interval_s=0.02) as sampler:
        sampler.resume()
        held = mmap(
            -1, 2**28, flags=MAP_PRIVATE | MAP_ANONYMOUS
        )  # of its own: what the process has freed before may serve any other request
        for _ in range(256):
            held.write(b"x" * 2**20)
        time.sleep(0.1)
        held.close()
        time.sleep(0.1)
        after_gib = sampler.latest()["memory/process_gib"]
    assert sampler.summary()["memory/process_gib"] - after_gib == pytest.approx(0.25, rel=0.2)


def test_a_run_shorter_than_an_interval_has_its_figures():
    with DeviceSampler(CPU, interval_s=60) as sampler:
        keep_busy(0.05)
        sampler.resume()
        time.sleep(0.1)
        warmup = sampler.latest()["device/busy_cores"]
    assert 0 <= sampler.summary()["device/busy_cores"] < warmup / 2


def test_warmup_is_not_in_the_summary():
    with DeviceSampler(CPU, interval_s=0.02) as sampler:
        keep_busy(0.2)
        assert sampler.summary() == {}
        sampler.resume()
        time.sleep(0.2)
        assert sampler.summary()["device/utilization_pct"] < 10


def test_what_is_sampled_in_a_pause_is_not_in_the_summary():
    with DeviceSampler(CPU, interval_s=60) as sampler:
        for _ in range(3):
            sampler.resume()
            time.sleep(0.05)
            sampler.pause()
            keep_busy(0.05)
    assert sampler.summary()["device/busy_cores"] < sampler.latest()["device/busy_cores"] / 2


def test_the_latest_sample_is_there_at_any_time():
    sampler = DeviceSampler(CPU, interval_s=0.02)
    assert sampler.latest() == {}
    with sampler:
        keep_busy(0.1)
        busy = sampler.latest()["device/utilization_pct"]
        time.sleep(0.1)
        assert sampler.latest()["device/utilization_pct"] < busy


def test_sampling_ends_with_the_context_and_also_when_it_fails():
    def fail():
        with DeviceSampler(CPU, interval_s=60):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert "device-sampler" not in [thread.name for thread in threading.enumerate()]


def test_a_device_that_tells_nothing_has_no_samples():
    with DeviceSampler(torch.device("meta"), interval_s=0.01) as sampler:
        sampler.resume()
        time.sleep(0.05)
        assert sampler.latest() == sampler.summary() == {}


@pytest.mark.parametrize("interval_s", [0, -1, float("nan")])
def test_an_interval_that_is_none_is_refused(interval_s):
    with pytest.raises(ValueError, match="interval must be above 0"):
        DeviceSampler(CPU, interval_s)


@needs_cuda
def test_on_cuda_the_driver_tells_of_the_device_that_torch_uses():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    held = torch.empty(2**30, dtype=torch.uint8, device=device)
    x = torch.randn(4096, 4096, device=device)
    with DeviceSampler(device, interval_s=0.05) as sampler:
        sampler.resume()
        for _ in range(100):
            x = torch.nn.functional.normalize(x @ x)
            torch.cuda.synchronize(device)
        time.sleep(0.3)
        summary, latest = sampler.summary(), sampler.latest()
    assert set(latest) <= set(METRICS)
    assert summary["device/memory_used_gib"] > held.nbytes / 2**30
    assert summary["device/memory_used_gib"] < torch.cuda.get_device_properties(device).total_memory / 2**30
    assert 0 <= summary["device/utilization_pct"] <= 100
