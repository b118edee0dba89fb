"""The driver is asked about the GPU that torch uses; where it does not answer, nothing is made up."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch

from ampsweep.metrics import METRICS
from ampsweep.monitors.device_sampler import DeviceSampler, read_energy_j
from ampsweep.monitors.nvml import NvmlDevice
from ampsweep.text import GIB

DEVICE = torch.device("cuda", 0)
UUID = "6c2bd1f4"


class Library:
    """NVML with one GPU, known by these names; what is not among its answers is not supported."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1
    nvmlClocksThrottleReasonSwPowerCap, nvmlClocksThrottleReasonHwSlowdown = 4, 8  # noqa: N815
    nvmlClocksThrottleReasonSwThermalSlowdown, nvmlClocksThrottleReasonHwThermalSlowdown = 32, 64  # noqa: N815
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 128  # noqa: N815

    def __init__(self, *names, loads=True, **answers):
        self.names, self.loads, self.answers = names, loads, answers
        self.num_open = 0

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
        def ask(*_):
            if name not in self.answers:
                raise self.NVMLError("not supported")
            return self.answers[name]

        return ask


@pytest.fixture
def install(monkeypatch):
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def install(*names, **answers):
        library = Library(*names, **answers)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return install


@pytest.mark.parametrize("name", [f"GPU-{UUID}", f"MIG-{UUID}"])
def test_the_gpu_is_found_by_its_uuid(name, install):
    library = install(name, nvmlDeviceGetTotalEnergyConsumption=2500)
    nvml = NvmlDevice.open(DEVICE)
    assert nvml is not None
    nvml.close()
    assert read_energy_j(DEVICE) == 2.5
    assert library.num_open == 0


@pytest.mark.parametrize(("names", "loads"), [((), True), ((f"GPU-{UUID}",), False)])
def test_without_nvml_or_the_gpu_in_it_nothing_is_told(names, loads, install):
    library = install(*names, loads=loads)
    assert NvmlDevice.open(DEVICE) is None
    assert read_energy_j(DEVICE) is None
    with DeviceSampler(DEVICE, interval_s=0.01) as sampler:
        sampler.resume()
        time.sleep(0.03)
    assert sampler.latest() == sampler.summary() == {}
    assert library.num_open == 0


def sampled(install, *, counted_s=1.1, **answers):
    library = install(f"GPU-{UUID}", **answers)
    with DeviceSampler(DEVICE, interval_s=0.01) as sampler:
        sampler.resume()
        time.sleep(counted_s)
        library.answers["nvmlDeviceGetTotalEnergyConsumption"] = 9000
    assert library.num_open == 0
    return sampler


def test_what_it_tells_has_the_units_of_the_metrics(install):
    sampler = sampled(
        install,
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97),
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=3 * GIB),
        nvmlDeviceGetPowerUsage=412_000,
        nvmlDeviceGetTotalEnergyConsumption=4000,
        nvmlDeviceGetTemperature=61,
        nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetCurrentClocksThrottleReasons=4,
    )
    summary = sampler.summary()
    expected = {
        "device/utilization_pct": 97,
        "device/memory_used_gib": 3,
        "device/power_w": 412,
        "device/energy_j": 5,
        "device/temperature_c": 61,
        "device/clock_mhz": 1980,
        "device/throttled_pct": 0,
        "device/power_capped_pct": 100,
    }
    assert summary == pytest.approx(expected)
    assert summary.keys() <= METRICS.keys()


def test_what_a_gpu_does_not_support_is_absent(install):
    sampler = sampled(install, nvmlDeviceGetPowerUsage=70_000)
    assert sampler.summary() == {"device/power_w": pytest.approx(70)}


def test_a_mean_over_time_that_does_not_count_is_no_figure(install):
    told = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
        "nvmlDeviceGetPowerUsage": 90_000,
        "nvmlDeviceGetClockInfo": 1980,
    }
    short = sampled(install, counted_s=0.4, **told)
    assert short.summary() == {"device/clock_mhz": pytest.approx(1980)}
    assert short.latest()["device/power_w"] == 90


def test_a_reading_counts_when_all_it_covers_does(install):
    library = install(f"GPU-{UUID}", nvmlDeviceGetPowerUsage=90_000)
    with DeviceSampler(DEVICE, interval_s=0.01) as sampler:
        for power_mw in (90_000, 500_000):  # of idle time before, and of the steps
            library.answers["nvmlDeviceGetPowerUsage"] = 90_000
            sampler.resume()
            time.sleep(0.5)
            library.answers["nvmlDeviceGetPowerUsage"] = power_mw
            time.sleep(0.7 if power_mw > 90_000 else 0.2)
            sampler.pause()
            time.sleep(0.02)
    assert sampler.summary() == {"device/power_w": pytest.approx(500)}
