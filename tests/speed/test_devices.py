"""The table of GPUs, against data sheets and driver's names."""

import re

import pytest

from ampsweep.speed.devices import DEVICES, device_named, device_of_driver


@pytest.mark.parametrize(
    ("arithmetic", "published"),
    [
        ("float32", "P40 11.76, V100-SXM2-32 15.7, T4 8.1, A100-80 19.5, H100 66.9, B200 75, RTX5090 104.8"),
        ("tf32", "A100-80 156, A10 62.5, RTX3090 35.6, L4 60, L40 90.5, H100-PCIe 378"),
        ("float16", "P100-SXM2-16 21.2, V100-SXM2-16 125, V100-PCIe-16 112, T4 65, TITAN-RTX 130, RTX2080Ti 53.8"),
        ("float16", "A100-40 312, A30 165, A2 18, A40 149.7, A10G 70, RTXA6000 154.8, RTX3080 59.5"),
        ("bfloat16", "L4 121, L40 181.05, L40S 362.05, RTX6000-Ada 364.2, RTX4090 165.2, RTX5090 209.5"),
        ("bfloat16", "H100 989.4, H200 989.4, H100-NVL 835.5, H200-NVL 835.5, B200 2250, GB200 2500, B300 2250"),
        ("float8_e4m3fn", "L4 242.5, RTX4090 330.3, RTX5000-Ada 522.2, H100 1978.9, B200 4500"),
    ],
)
def test_peaks_are_those_that_nvidia_publishes(arithmetic, published):
    """Where it publishes a rate with sparsity, or with a float16 sum, half of that."""
    pairs = {name: float(tflops) for name, tflops in (pair.split() for pair in published.split(", "))}
    peaks = {name: DEVICES[name].tflops_per_sec(arithmetic) for name in pairs}
    assert peaks == pytest.approx(pairs, rel=0.015)


def test_geforce_peaks_are_a_sixteenth_of_the_advertised():
    """FP4 with sparsity and half the accumulator: 2 times for each of FP4, FP8, sparsity and a float16 sum."""
    advertised = {"5090": 3352, "5080": 1801, "5070Ti": 1406, "5070": 988, "5060Ti": 759, "5060": 614}
    peaks = {name: DEVICES[f"RTX{name}"].bfloat16 * 16 for name in advertised}
    assert peaks == pytest.approx(advertised, rel=2e-3)


def test_older_gpus_lack_newer_arithmetic():
    lacking = {name: [DEVICES[name].tf32, DEVICES[name].bfloat16, DEVICES[name].float8] for name in ("T4", "A100-80")}
    assert lacking == {"T4": [None, None, None], "A100-80": [155.9, 311.9, None]}
    assert DEVICES["H100"].tflops_per_sec("int8") is None


def test_a_device_is_found_by_its_name_and_its_drivers():
    assert all(device_named(device.name.lower().replace("-", " ")) is device for device in DEVICES.values())
    drivers = {name: device for device in DEVICES.values() for name in device.driver_names}
    assert len(drivers) == len(DEVICES)
    for name, device in drivers.items():
        assert (
            device_of_driver(f"NVIDIA {name}") is device_of_driver(f"Tesla {name}") is device_of_driver(name) is device
        )
        assert device_named(f"NVIDIA {name}") is device
    assert device_of_driver("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(("a100 80gb", "A100-80"), ("A100-SXM-40GB", "A100-40"), ("A100 PCIe 80 GB", "A100-PCIe-80"), ("A40", "A40")),
        *(("h100", "H100"), ("H100 SXM5 80GB", "H100"), ("H100 (PCIe)", "H100-PCIe"), ("GH200", "GH200")),
        *(("4090", "RTX4090"), ("rtx 3090 24GB", "RTX3090"), ("4070 Ti Super", "RTX4070Ti-Super"), ("T4 16GB", "T4")),
        *(("RTX 2080 Super Max-Q (laptop)", "RTX2080Super-MaxQ"), ("RTX 3080 (laptop)", "RTX3080-Laptop")),
        *(("V100-SXM3-32GB-H", "V100-SXM3-32-H"), ("A6000", "RTXA6000"), ("6000 Ada", "RTX6000-Ada")),
    ],
)
def test_a_device_is_found_as_people_write_it(given, name):
    assert device_named(given).name == name


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("A100", "may be A100-40 or A100-80 or A100-PCIe-40 or A100-PCIe-80; name one"),
        ("V100-16GB", "may be V100-SXM2-16 or V100-PCIe-16; name one"),
        ("RTX 5000", "may be Quadro-RTX5000 or RTXA5000 or RTX5000-Ada; name one"),
        ("RTX 4091", "no data of a GPU 'RTX 4091'; did you mean RTX4090?"),
        ("RTX 4090 48GB", "did you mean RTX4090?"),
        *((name, "known are P100-PCIe-16, P100-SXM2-16, ") for name in ("MI300X", "", "A100 (form not told)")),
    ],
)
def test_what_names_no_single_device_is_refused(given, answer):
    with pytest.raises(ValueError, match=re.escape(answer)):
        device_named(given)
