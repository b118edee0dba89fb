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
UUID, ADDRESS = "6c2bd1f4", "00000000:3B:00.0"


class Library:
    """NVML with one GPU, known by these names; what is not among its answers is not supported."""

    class NVMLError(Exception):
        pass

    NVML_SUCCESS, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_DEVICE_MIG_ENABLE = 0, 0, 1, 1
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

    nvmlDeviceGetHandleByPciBusId = nvmlDeviceGetHandleByUUID  # noqa: N815

    def __getattr__(self, name):
        def ask(*_):
            if name not in self.answers:
                raise self.NVMLError("not supported")
            return self.answers[name]

        return ask


@pytest.fixture
def install(monkeypatch):
    properties = SimpleNamespace(uuid=UUID, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def install(*names, **answers):
        library = Library(*names, **answers)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    return install


@pytest.mark.parametrize("name", [f"GPU-{UUID}", f"MIG-{UUID}", ADDRESS])
def test_the_gpu_is_found_by_its_uuid_or_else_its_address(name, install):
    library = install(name, nvmlDeviceGetTotalEnergyConsumption=2500)
    nvml = NvmlDevice.open(DEVICE)
    assert nvml is not None
    nvml.close()
    assert read_energy_j(DEVICE) == 2.5
    assert library.num_open == 0


def test_a_partition_does_not_get_the_whole_gpus_figures(install):
    install(ADDRESS, nvmlDeviceGetMigMode=[1, 1])
    assert NvmlDevice.open(DEVICE) is None
    install(ADDRESS, nvmlDeviceGetMigMode=[0, 0])
    assert NvmlDevice.open(DEVICE) is not None


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


def instant_power(milliwatts, status=0):
    return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))]


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
    assert sampler.absent() == {}


def test_power_is_that_of_the_moment_where_the_gpu_tells_it(install):
    averaged = {"nvmlDeviceGetPowerUsage": 90_000}
    of_moment = sampled(install, counted_s=0.3, nvmlDeviceGetFieldValues=instant_power(650_000), **averaged)
    assert of_moment.summary() == {"device/power_w": pytest.approx(650)}
    refused = sampled(install, nvmlDeviceGetFieldValues=instant_power(0, status=3), **averaged)
    assert refused.summary() == {"device/power_w": pytest.approx(90)}


def test_a_mean_over_time_that_does_not_count_is_no_figure(install):
    told = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
        "nvmlDeviceGetPowerUsage": 90_000,
        "nvmlDeviceGetClockInfo": 1980,
    }
    short = sampled(install, counted_s=0.4, **told)
    assert short.summary() == {"device/clock_mhz": pytest.approx(1980)}
    assert short.absent().keys() == {"device/utilization_pct", "device/power_w"} <= METRICS.keys()
    assert "mean over up to 1 s" in short.absent()["device/power_w"]
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
