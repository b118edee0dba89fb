"""Samples of the device in the background: means over the counted time, peaks, energy; nothing is made up."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from devices import needs_cuda

from ampsweep.metrics import METRICS
from ampsweep.monitors import device_sampler
from ampsweep.monitors.device_sampler import MIN_STRETCH_S, DeviceSampler, EnergyMeter, read_energy_j
from ampsweep.monitors.nvml import NvmlDevice, query_nvml
from ampsweep.monitors.processors import num_available_cores
from ampsweep.text import GIB

CPU, DEVICE = torch.device("cpu"), torch.device("cuda", 0)
UUID = "6c2bd1f4"


class Library:
    """NVML with one GPU, known by these names; a question without an answer is not supported."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, nvmlMemory_v2 = 0, 1, 2  # noqa: N815
    reasons = {"SwPowerCap": 4, "HwSlowdown": 8, "SwThermalSlowdown": 32, "HwThermalSlowdown": 64}

    def __init__(self, *names, loads=True, **answers):
        self.names, self.loads, self.answers, self.num_open = names, loads, answers, 0
        for reason, bit in (self.reasons | {"HwPowerBrakeSlowdown": 128}).items():
            setattr(self, f"nvmlClocksThrottleReason{reason}", bit)

    def nvmlInit(self):  # noqa: N802
        if not self.loads:
            raise self.NVMLError("no library")
        self.num_open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetHandleByUUID(self, name):  # noqa: N802
        if name not in self.names:
            raise self.NVMLError("not found")
        return name

    def __getattr__(self, name):
        def ask(*_, **__):
            if (question := name.removeprefix("nvmlDeviceGet")) not in self.answers:
                raise self.NVMLError("not supported")
            return self.answers[question]

        return ask


def install(monkeypatch, *names, **answers):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    library = Library(*(names or (f"GPU-{UUID}",)), **answers)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


@pytest.fixture
def time(monkeypatch):
    """Simulated time, of which `busy_s` was spent by this process."""
    time = SimpleNamespace(now_s=0.0, busy_s=0.0)
    time.perf_counter, time.process_time = lambda: time.now_s, lambda: time.busy_s
    monkeypatch.setattr(device_sampler, "time", time)
    return time


def play(device, time, *stretches):
    """Sample without a thread: each stretch is its seconds, those that this process is busy, and a call at its end."""
    sampler, left = DeviceSampler(device), [*stretches]

    def wait(_):
        seconds, busy_s, *calls = left.pop(0)
        time.now_s, time.busy_s = time.now_s + seconds, time.busy_s + busy_s
        for call in calls:
            call(sampler)
        sampler._is_over = not left

    sampler._sample_now = SimpleNamespace(wait=wait, clear=lambda: None, set=lambda: None)
    sampler._run(device_sampler._Cpu() if device.type == "cpu" else NvmlDevice.open(device))
    return sampler


resume, pause = DeviceSampler.resume, DeviceSampler.pause


def test_the_summary_is_of_the_counted_time_alone(time, monkeypatch):
    sampler = play(CPU, time, (4, 4, resume), (1, 0.5), (1, 0.1, pause), (9, 9, resume), (2, 0.6))
    assert sampler.summary()["device/busy_cores"] == pytest.approx(1.2 / 4)
    assert sampler.summary()["device/utilization_pct"] == pytest.approx(30 / num_available_cores())
    assert sampler.latest()["device/busy_cores"] == pytest.approx(0.3)
    assert play(CPU, time, (4, 4)).summary() == {}, "sampling starts paused"

    gib = iter([9, 1, 3, 2, 8])
    monkeypatch.setattr(device_sampler.psutil.Process, "memory_info", lambda _: SimpleNamespace(rss=next(gib) * GIB))
    sampler = play(CPU, time, (1, 0, resume), (1, 0), (1, 0), (1, 0, pause), (1, 0))
    assert (sampler.summary()["memory/process_gib"], sampler.latest()["memory/process_gib"]) == (3, 8), "peak and last"


def test_a_thread_samples_until_the_context_ends():
    sampler = DeviceSampler(CPU, interval_s=60)
    assert sampler.latest() == {}
    with sampler:
        sampler.resume()
    assert sampler.latest().keys() == {"device/utilization_pct", "device/busy_cores", "memory/process_gib"}
    with pytest.raises(ZeroDivisionError), DeviceSampler(CPU, interval_s=60):
        _ = 1 / 0
    assert "device-sampler" not in [thread.name for thread in threading.enumerate()]
    with DeviceSampler(torch.device("meta"), interval_s=0.01) as sampler:
        sampler.resume()
    assert sampler.latest() == sampler.summary() == {}


def test_the_gpu_is_found_by_its_uuid(monkeypatch):
    for name in (f"GPU-{UUID}", f"MIG-{UUID}"):
        library = install(monkeypatch, name, TotalEnergyConsumption=2500)
        assert (read_energy_j(DEVICE), NvmlDevice.open(CPU), library.num_open) == (2.5, None, 0)
    for name, loads in (("another", True), (f"GPU-{UUID}", False)):
        library = install(monkeypatch, name, loads=loads)
        assert NvmlDevice.open(DEVICE) is read_energy_j(DEVICE) is None
        with DeviceSampler(DEVICE, interval_s=60) as sampler:
            sampler.resume()
        assert sampler.latest() == sampler.summary() == {}
        assert library.num_open == 0


def test_readings_have_the_units_of_the_metrics(time, monkeypatch):
    library = install(monkeypatch, PowerUsage=412_000, TotalEnergyConsumption=4000, Temperature=61, ClockInfo=1980)
    library.answers["UtilizationRates"] = SimpleNamespace(gpu=97)
    library.answers["MemoryInfo"] = SimpleNamespace(used=3 * GIB)
    library.answers["CurrentClocksThrottleReasons"] = 4

    def consume(_):
        library.answers["TotalEnergyConsumption"] = 9000

    sampler = play(DEVICE, time, (0.1, 0, resume), (1.1, 0, consume))
    means = {"utilization_pct": 97, "memory_used_gib": 3, "power_w": 412, "energy_j": 5, "temperature_c": 61}
    means |= {"clock_mhz": 1980, "throttled_pct": 0, "power_capped_pct": 100}
    expected = {f"device/{name}": value for name, value in means.items()}
    assert sampler.summary() == pytest.approx(expected)
    assert expected.keys() <= METRICS.keys()
    assert library.num_open == 0


def test_a_mean_counts_only_if_all_it_covers_does(time, monkeypatch):
    library = install(monkeypatch, PowerUsage=90_000, ClockInfo=1980)

    def power(milliwatts):
        return lambda _: library.answers.update(PowerUsage=milliwatts)

    short = play(DEVICE, time, (5, 0, resume), (0.4, 0), (0.4, 0))
    assert short.summary() == {"device/clock_mhz": pytest.approx(1980)}, "unsupported readings are absent"
    assert short.latest()["device/power_w"] == 90
    steps = (0.5, 0, power(90_000)), (0.2, 0, pause), (9, 0, resume), (0.9, 0), (0.2, 0, power(500_000)), (1, 0)
    assert play(DEVICE, time, (1, 0, resume), *steps).summary()["device/power_w"] == pytest.approx(500)


@pytest.mark.parametrize(
    ("reasons", "throttled_pct", "power_capped_pct"),
    [(0, 0, 0), (1 | 4, 0, 100), (8 | 4, 100, 100), (32, 100, 0), (64, 100, 0), (128, 100, 0)],
)
def test_heat_slows_down_and_a_power_cap_is_a_setting(reasons, throttled_pct, power_capped_pct, monkeypatch):
    install(monkeypatch, CurrentClocksThrottleReasons=reasons)
    readings = query_nvml(DEVICE, NvmlDevice.readings)
    assert readings == {"device/throttled_pct": throttled_pct, "device/power_capped_pct": power_capped_pct}


def test_displays_and_the_driver_itself_are_no_users(monkeypatch):
    own, other, display = (SimpleNamespace(pid=pid, usedGpuMemory=pid * GIB) for pid in (os.getpid(), 1, 2))
    library = install(monkeypatch, MemoryInfo=SimpleNamespace(used=2 * GIB), EnforcedPowerLimit=700_000)
    library.answers |= {"ComputeRunningProcesses": [other, own], "GraphicsRunningProcesses": [display, other]}
    assert query_nvml(DEVICE, NvmlDevice.compute_processes) == {os.getpid()}
    assert query_nvml(DEVICE, NvmlDevice.process_gib) == os.getpid()
    assert query_nvml(DEVICE, NvmlDevice.held_gib) == 2
    assert query_nvml(DEVICE, NvmlDevice.power_limit_w) == 700
    install(monkeypatch)
    assert query_nvml(DEVICE, NvmlDevice.compute_processes) is None


@pytest.mark.parametrize(
    ("joules", "steps", "min_stretch_s", "expected"),
    [
        ((1000.0, 1600.0), [(10, 40)], 0, 600 / 30),
        ((0.0, 100.0, 900.0, 1100.0), [(0, 10), (10, 30)], 0, (100 + 200) / 30),  # nothing counts in between
        ((0.0, 100.0), [(0, 10)], MIN_STRETCH_S, None),
        ((0.0,), [(None, 5), (5, None)], 0, None),
        *(((None, 100.0), [(0, 10)], 0, None), ((100.0, None), [(0, 10)], 0, None)),
    ],
)
def test_energy_is_the_counters_growth_over_the_samples(joules, steps, min_stretch_s, expected):
    meter = EnergyMeter(iter(joules).__next__, samples_per_step=8, min_stretch_s=min_stretch_s)
    for begin, end in steps:
        if begin is not None:
            meter.begin(begin)
        if end is not None:
            meter.end(end)
    assert meter.summary() == ({} if expected is None else {"device/energy_per_sample_j": expected / 8})
    assert "device/energy_per_sample_j" in METRICS
    assert MIN_STRETCH_S == 2.0, "20 times the counter's 100 ms"


def test_there_is_a_last_sample_even_if_the_end_comes_before_the_first(monkeypatch):
    sampler = DeviceSampler(torch.device("cpu"))
    monkeypatch.setattr(device_sampler._Cpu, "energy_j", lambda _: sampler._sample_now.wait(5) and None)
    with sampler:
        pass
    assert sampler.latest()


@needs_cuda
def test_on_cuda_the_driver_reports_the_device_that_torch_uses():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    held = torch.empty(2**30, dtype=torch.uint8, device=device)
    with DeviceSampler(device, interval_s=0.05) as sampler:
        sampler.resume()
    total_gib = torch.cuda.get_device_properties(device).total_memory / GIB
    assert held.nbytes / GIB < sampler.latest()["device/memory_used_gib"] < total_gib
    assert 0 <= sampler.summary().get("device/clock_mhz", 0) < 5000
