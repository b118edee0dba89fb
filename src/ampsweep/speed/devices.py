"""GPUs: size, memory, power and peak rates.

Clocks, memory and power are those of NVIDIA's data sheets and product briefs, the L2 is as the driver reports it. Peak
rates are SMs x clock x operations per SM and clock (a multiply-add is two), of the architecture's whitepaper;
`tensor_ghz` is a lower clock at which NVIDIA rates the tensor cores of a module. GeForce cards, A10G and L40 (`RTX20`
to `RTX50`) accumulate in float32 at half the rate of other cards with their chips.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

from ampsweep.text import meant


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Peak rates are dense TFLOP/s at boost clock, accumulated in float32 as torch does: of the tensor cores,
    except for `float32`; None for an arithmetic that the GPU lacks."""

    name: str
    """As a user types it: `A100-80`, `RTX4090`, `V100-SXM2-16`. Without a form factor it is the SXM module."""
    driver_names: tuple[str, ...]
    """As torch.cuda.get_device_name tells them, without the prefixes `NVIDIA ` and `Tesla `."""
    architecture: str
    capability: tuple[int, int]
    num_sms: int
    boost_ghz: float
    memory_gib: float
    """Total that nvidia-smi reports: without what ECC takes where it is on by default."""
    bandwidth_gb_per_sec: float
    """Of DRAM, reads and writes together."""
    l2_mib: float
    tdp_w: float
    """The default power limit."""
    link_gb_per_sec: float
    """To the other GPUs of the usual server, in one direction: NVLink's, else PCIe's."""
    float32: float
    tf32: float | None
    float16: float
    """Without tensor cores: the rate of cuBLAS, which computes in float32 where float16 would be slower."""
    bfloat16: float | None
    float8: float | None
    source: str

    def tflops_per_sec(self, arithmetic: str) -> float | None:
        """The peak for the dtype of a product's operands (`float8_*` of any kind), or `tf32`."""
        rates = {"float32": self.float32, "tf32": self.tf32, "float16": self.float16, "bfloat16": self.bfloat16}
        return self.float8 if arithmetic.startswith("float8_") else rates.get(arithmetic)


_PCIE: Final = {"PCIe3": 16.0, "PCIe4": 32.0, "PCIe4 x8": 16.0, "PCIe5": 64.0, "PCIe5 x8": 32.0}
_NVLINK: Final = {"NVLink1": 80.0, "NVLink2": 150.0, "NVLink3": 300.0, "NVLink4": 450.0, "NVLink5": 900.0}
_LINKS: Final = _PCIE | _NVLINK | {"NVLink bridge": 300.0, "NVLink cut": 200.0}
"""GB/s in one direction: 16 lanes of PCIe, else all the NVLinks of a GPU (of an A800 and H800 some are off)."""
_ECC: Final = 15 / 16
"""The share of GDDR memory that ECC leaves."""


def _rows(file: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines())


def _table() -> Iterator[Device]:
    chips = {row["chip"]: row for row in _rows("chips.csv")}
    for row in _rows("devices.csv"):
        chip, name, driver_name, link = (row.pop(key) for key in ("chip", "name", "driver_name", "link"))
        facts, num_sms = chips[chip], int(row.pop("num_sms"))
        figures: dict[str, Any] = {key: float(value) for key, value in row.items() if value}
        capability = int(facts["major"]), int(facts["minor"])
        tensor_ghz = figures.pop("tensor_ghz", figures["boost_ghz"])
        float16 = num_sms * tensor_ghz * int(facts["float16"]) / 1e3
        since_ampere, since_ada = capability >= (8, 0), capability >= (8, 9)
        yield Device(
            *(name, (driver_name,), facts["architecture"], capability, num_sms),
            **figures,
            link_gb_per_sec=_LINKS[link],
            float32=round(num_sms * figures["boost_ghz"] * int(facts["float32"]) / 1e3, 1),
            tf32=round(float16 / 2, 1) if since_ampere else None,
            float16=round(float16, 1),
            bfloat16=round(float16, 1) if since_ampere else None,
            float8=round(2 * float16, 1) if since_ada else None,
            source=facts["source"],
        )


_TABLE: Final = (*_table(),)
DEVICES: Final[Mapping[str, Device]] = {device.name: device for device in _TABLE}
_BY_DRIVER: Final = {name: device for device in _TABLE for name in device.driver_names}


def device_of_driver(name: str) -> Device | None:
    """The device of a driver's name; None for other devices, and for partitions (MIG), which have other names."""
    return _BY_DRIVER.get(name.removeprefix("NVIDIA ").removeprefix("Tesla "))


def device_named(name: str) -> Device:
    """The device that a user names, in any case and spelling ("rtx 4090", "A100 SXM4 80GB"), or by its driver's name.

    Of the devices that have every word of `name`, it is the one whose own name is contained in `name`, and is longest.
    Raises ValueError if there is none, or several: "V100" is no device, "H100" is.
    """
    given = _words(name)
    possible = [device for device in _TABLE if given <= _known_words(device)]
    named = sorted((len(_words(device.name)), device.name) for device in possible if _words(device.name) <= given)
    if named:
        return DEVICES[named[-1][1]]
    if len(possible) > 1 and given:
        raise ValueError(f"the GPU {name!r} may be {' or '.join(device.name for device in possible)}; name one")
    guess = possible[0].name if given and possible else meant(name.replace(" ", ""), DEVICES)
    known = f"known are {', '.join(DEVICES)}" if guess is None else f"did you mean {guess}?"
    raise ValueError(f"no data of a GPU {name!r}; {known}")


def _words(text: str) -> frozenset[str]:
    """The runs of letters and of digits, without the brand in front."""
    text = re.sub(r"max[ -]?q", "maxq", re.sub(r"sxm[456]", "sxm", text.lower()))
    text = re.sub(r"^(nvidia|tesla|geforce|[rg]tx|[ _-])+", "", text)
    return frozenset(re.findall(r"[a-z]+|\d+", text)) - {"gb", "gib", "gpu"}


def _known_words(device: Device) -> frozenset[str]:
    """What a user may say of a device: its names, form factor and memory, with and without ECC."""
    before_ecc = device.memory_gib / _ECC
    memory = f"{ceil(device.memory_gib)} {before_ecc:.0f}" if before_ecc.is_integer() else f"{ceil(device.memory_gib)}"
    form = "PCIe" if device.link_gb_per_sec <= 64 or device.name.endswith("NVL") else "SXM"
    laptop = "laptop" if device.name.endswith("MaxQ") else ""
    return frozenset().union(*map(_words, (device.name, *device.driver_names, form, memory, laptop)))
