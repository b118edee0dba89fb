"""GPUs: size, memory, power and peak rates.

Clocks, memory and power are those of NVIDIA's data sheets and product briefs, the L2 is as the driver reports it. Peak
rates are SMs x clock x operations per SM and clock, which the architecture's whitepaper gives.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

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


class _Chip(NamedTuple):
    architecture: str
    capability: tuple[int, int]
    float32: int  # operations per SM and clock; a multiply-add is two
    float16: int
    source: str


_GP100: Final = _Chip("pascal", (6, 0), 128, 256, "NVIDIA Tesla P100 whitepaper")
_GP102: Final = _Chip("pascal", (6, 1), 256, 256, "NVIDIA GeForce GTX 1080 whitepaper")
_GV100: Final = _Chip("volta", (7, 0), 128, 1024, "NVIDIA Tesla V100 GPU architecture whitepaper")
_TU102: Final = _Chip("turing", (7, 5), 128, 1024, "NVIDIA Turing GPU architecture whitepaper")
_GA100: Final = _Chip("ampere", (8, 0), 128, 2048, "NVIDIA A100 Tensor Core GPU architecture whitepaper")
_GA102: Final = _Chip("ampere", (8, 6), 256, 1024, "NVIDIA Ampere GA102 GPU architecture whitepaper")
_AD102: Final = _Chip("ada", (8, 9), 256, 1024, "NVIDIA Ada GPU architecture whitepaper")
_GH100: Final = _Chip("hopper", (9, 0), 256, 4096, "NVIDIA H100 Tensor Core GPU architecture whitepaper")
_GB100: Final = _Chip("blackwell", (10, 0), 256, 8192, "NVIDIA HGX B200 data sheet, an eighth of its 8 GPUs")
_GB110: Final = _Chip("blackwell", (10, 3), 256, 8192, "NVIDIA HGX B300 data sheet, an eighth of its 8 GPUs")
_GB202: Final = _Chip("blackwell", (12, 0), 256, 1024, "NVIDIA RTX Blackwell GPU architecture whitepaper")
# GeForce cards, A10G and L40 accumulate in float32 at half the rate of other cards with their chips.
_RTX20, _RTX30, _RTX40, _RTX50 = (chip._replace(float16=512) for chip in (_TU102, _GA102, _AD102, _GB202))

# GB/s in one direction: 16 lanes of PCIe, else all the NVLinks of a GPU (of an A800 and H800 some are off).
_PCIE: Final = {"PCIe3": 16.0, "PCIe4": 32.0, "PCIe4 x8": 16.0, "PCIe5": 64.0, "PCIe5 x8": 32.0}
_NVLINK: Final = {"NVLink1": 80.0, "NVLink2": 150.0, "NVLink3": 300.0, "NVLink4": 450.0, "NVLink5": 900.0}
_LINKS: Final = _PCIE | _NVLINK | {"NVLink bridge": 300.0, "NVLink cut": 200.0}
_PRO: Final = "RTX PRO 6000 Blackwell"
_ECC: Final = 15 / 16
"""The share of GDDR memory that ECC leaves."""


def _gpu(
    chip: _Chip,
    name: str,
    driver_name: str,
    link: str,
    num_sms: int,
    boost_ghz: float,
    memory_gib: float,
    bandwidth: float,
    l2_mib: float,
    tdp_w: float,
    tensor_ghz: float | None = None,
) -> Device:
    """A row of the table. `tensor_ghz` is the lower clock at which NVIDIA rates the tensor cores of some modules."""
    float16 = num_sms * (tensor_ghz or boost_ghz) * chip.float16 / 1e3
    since_ampere, since_ada = chip.capability >= (8, 0), chip.capability >= (8, 9)
    return Device(
        *(name, (driver_name,), chip.architecture, chip.capability, num_sms, boost_ghz, memory_gib),
        *(bandwidth, l2_mib, tdp_w, _LINKS[link]),
        float32=round(num_sms * boost_ghz * chip.float32 / 1e3, 1),
        tf32=round(float16 / 2, 1) if since_ampere else None,
        float16=round(float16, 1),
        bfloat16=round(float16, 1) if since_ampere else None,
        float8=round(2 * float16, 1) if since_ada else None,
        source=chip.source,
    )


_TABLE: Final = (
    # chip, name, driver's name, link, SMs, boost GHz, memory GiB, GB/s, L2 MiB, W, GHz of the tensor cores
    _gpu(_GP100, "P100-PCIe-16", "P100-PCIE-16GB", "PCIe3", 56, 1.303, 16, 732, 4, 250),
    _gpu(_GP100, "P100-SXM2-16", "P100-SXM2-16GB", "NVLink1", 56, 1.48, 16, 732, 4, 300),
    _gpu(_GP102, "P40", "P40", "PCIe3", 30, 1.531, 24 * _ECC, 346, 3, 250),
    _gpu(_GP102, "P4", "P4", "PCIe3", 20, 1.114, 8 * _ECC, 192, 2, 75),
    _gpu(_GP102, "GTX1070", "GeForce GTX 1070", "PCIe3", 15, 1.683, 8, 256, 2, 150),
    _gpu(_GP102, "GTX1070Ti", "GeForce GTX 1070 Ti", "PCIe3", 19, 1.683, 8, 256, 2, 180),
    _gpu(_GP102, "GTX1080", "GeForce GTX 1080", "PCIe3", 20, 1.733, 8, 320, 2, 180),
    _gpu(_GP102, "GTX1080Ti", "GeForce GTX 1080 Ti", "PCIe3", 28, 1.582, 11, 484, 2.75, 250),
    _gpu(_GP102, "TITAN-Xp", "TITAN Xp", "PCIe3", 30, 1.582, 12, 548, 3, 250),
    _gpu(_GV100, "V100-SXM2-16", "V100-SXM2-16GB", "NVLink2", 80, 1.53, 16, 900, 6, 300),
    _gpu(_GV100, "V100-SXM2-32", "V100-SXM2-32GB", "NVLink2", 80, 1.53, 32, 900, 6, 300),
    _gpu(_GV100, "V100-SXM3-32", "V100-SXM3-32GB", "NVLink2", 80, 1.597, 32, 981, 6, 350),
    _gpu(_GV100, "V100-SXM3-32-H", "V100-SXM3-32GB-H", "NVLink2", 80, 1.597, 32, 981, 6, 450),
    _gpu(_GV100, "V100-PCIe-16", "V100-PCIE-16GB", "PCIe3", 80, 1.38, 16, 900, 6, 250),
    _gpu(_GV100, "V100-PCIe-32", "V100-PCIE-32GB", "PCIe3", 80, 1.38, 32, 900, 6, 250),
    _gpu(_GV100, "V100S", "V100S-PCIE-32GB", "PCIe3", 80, 1.597, 32, 1134, 6, 250),
    _gpu(_GV100, "TITAN-V", "TITAN V", "PCIe3", 80, 1.455, 12, 653, 4.5, 250),
    _gpu(_TU102, "T4", "T4", "PCIe3", 40, 1.59, 16 * _ECC, 320, 4, 70),
    _gpu(_TU102, "TITAN-RTX", "TITAN RTX", "PCIe3", 72, 1.77, 24, 672, 6, 280),
    _gpu(_TU102, "Quadro-RTX5000", "Quadro RTX 5000", "PCIe3", 48, 1.815, 16, 448, 4, 230),
    _gpu(_TU102, "Quadro-RTX6000", "Quadro RTX 6000", "PCIe3", 72, 1.77, 24, 672, 6, 260),
    _gpu(_TU102, "RTX8000", "Quadro RTX 8000", "PCIe3", 72, 1.77, 48, 672, 6, 260),
    _gpu(_RTX20, "RTX2060", "GeForce RTX 2060", "PCIe3", 30, 1.68, 6, 336, 3, 160),
    _gpu(_RTX20, "RTX2060Super", "GeForce RTX 2060 SUPER", "PCIe3", 34, 1.65, 8, 448, 4, 175),
    _gpu(_RTX20, "RTX2070", "GeForce RTX 2070", "PCIe3", 36, 1.62, 8, 448, 4, 175),
    _gpu(_RTX20, "RTX2070Super", "GeForce RTX 2070 SUPER", "PCIe3", 40, 1.77, 8, 448, 4, 215),
    _gpu(_RTX20, "RTX2080", "GeForce RTX 2080", "PCIe3", 46, 1.71, 8, 448, 4, 215),
    _gpu(_RTX20, "RTX2080Super", "GeForce RTX 2080 SUPER", "PCIe3", 48, 1.815, 8, 496, 4, 250),
    _gpu(_RTX20, "RTX2080Ti", "GeForce RTX 2080 Ti", "PCIe3", 68, 1.545, 11, 616, 5.5, 250),
    _gpu(_RTX20, "RTX2070-MaxQ", "GeForce RTX 2070 with Max-Q Design", "PCIe3", 36, 1.185, 8, 384, 4, 80),
    _gpu(_RTX20, "RTX2080-MaxQ", "GeForce RTX 2080 with Max-Q Design", "PCIe3", 46, 1.095, 8, 384, 4, 80),
    _gpu(_RTX20, "RTX2080Super-MaxQ", "GeForce RTX 2080 Super with Max-Q Design", "PCIe3", 48, 1.08, 8, 352, 4, 80),
    _gpu(_GA100, "A100-40", "A100-SXM4-40GB", "NVLink3", 108, 1.41, 40, 1555, 40, 400),
    _gpu(_GA100, "A100-80", "A100-SXM4-80GB", "NVLink3", 108, 1.41, 80, 2039, 40, 400),
    _gpu(_GA100, "A100-PCIe-40", "A100-PCIE-40GB", "PCIe4", 108, 1.41, 40, 1555, 40, 250),
    _gpu(_GA100, "A100-PCIe-80", "A100 80GB PCIe", "PCIe4", 108, 1.41, 80, 1935, 40, 300),
    _gpu(_GA100, "A800-80", "A800-SXM4-80GB", "NVLink cut", 108, 1.41, 80, 2039, 40, 400),
    _gpu(_GA100, "A30", "A30", "PCIe4", 56, 1.44, 24, 933, 24, 165),
    _gpu(_GA102, "A2", "A2", "PCIe4 x8", 10, 1.77, 16 * _ECC, 200, 2, 60),
    _gpu(_GA102, "A10", "A10", "PCIe4", 72, 1.695, 24 * _ECC, 600, 6, 150),
    _gpu(_GA102, "A40", "A40", "PCIe4", 84, 1.74, 48 * _ECC, 696, 6, 300),
    _gpu(_GA102, "RTXA4000", "RTX A4000", "PCIe4", 48, 1.56, 16, 448, 4, 140),
    _gpu(_GA102, "RTXA4500", "RTX A4500", "PCIe4", 56, 1.65, 20, 640, 5, 200),
    _gpu(_GA102, "RTXA5000", "RTX A5000", "PCIe4", 64, 1.695, 24, 768, 6, 230),
    _gpu(_GA102, "RTXA5500", "RTX A5500", "PCIe4", 80, 1.665, 24, 768, 6, 230),
    _gpu(_GA102, "RTXA6000", "RTX A6000", "PCIe4", 84, 1.8, 48, 768, 6, 300),
    _gpu(_RTX30, "A10G", "A10G", "PCIe4", 80, 1.71, 24 * _ECC, 600, 6, 300),
    _gpu(_RTX30, "RTX3060", "GeForce RTX 3060", "PCIe4", 28, 1.777, 12, 360, 3, 170),
    _gpu(_RTX30, "RTX3060Ti", "GeForce RTX 3060 Ti", "PCIe4", 38, 1.665, 8, 448, 4, 200),
    _gpu(_RTX30, "RTX3070", "GeForce RTX 3070", "PCIe4", 46, 1.725, 8, 448, 4, 220),
    _gpu(_RTX30, "RTX3070Ti", "GeForce RTX 3070 Ti", "PCIe4", 48, 1.77, 8, 608, 4, 290),
    _gpu(_RTX30, "RTX3080", "GeForce RTX 3080", "PCIe4", 68, 1.71, 10, 760, 5, 320),
    _gpu(_RTX30, "RTX3080Ti", "GeForce RTX 3080 Ti", "PCIe4", 80, 1.665, 12, 912, 6, 350),
    _gpu(_RTX30, "RTX3090", "GeForce RTX 3090", "PCIe4", 82, 1.695, 24, 936, 6, 350),
    _gpu(_RTX30, "RTX3090Ti", "GeForce RTX 3090 Ti", "PCIe4", 84, 1.86, 24, 1008, 6, 450),
    _gpu(_RTX30, "RTX3080-Laptop", "GeForce RTX 3080 Laptop GPU", "PCIe4", 48, 1.545, 16, 448, 4, 115),
    _gpu(_AD102, "L4", "L4", "PCIe4", 58, 2.04, 24 * _ECC, 300, 48, 72),
    _gpu(_AD102, "L40S", "L40S", "PCIe4", 142, 2.52, 48 * _ECC, 864, 96, 350),
    _gpu(_AD102, "RTX4000-Ada", "RTX 4000 Ada Generation", "PCIe4", 48, 2.175, 20, 360, 40, 130),
    _gpu(_AD102, "RTX4500-Ada", "RTX 4500 Ada Generation", "PCIe4", 60, 2.58, 24, 432, 48, 210),
    _gpu(_AD102, "RTX5000-Ada", "RTX 5000 Ada Generation", "PCIe4", 100, 2.55, 32, 576, 72, 250),
    _gpu(_AD102, "RTX6000-Ada", "RTX 6000 Ada Generation", "PCIe4", 142, 2.505, 48, 960, 96, 300),
    _gpu(_RTX40, "L40", "L40", "PCIe4", 142, 2.49, 48 * _ECC, 864, 96, 300),
    _gpu(_RTX40, "RTX4060", "GeForce RTX 4060", "PCIe4 x8", 24, 2.46, 8, 272, 24, 115),
    _gpu(_RTX40, "RTX4060Ti", "GeForce RTX 4060 Ti", "PCIe4 x8", 34, 2.535, 8, 288, 32, 160),
    _gpu(_RTX40, "RTX4070", "GeForce RTX 4070", "PCIe4", 46, 2.475, 12, 504, 36, 200),
    _gpu(_RTX40, "RTX4070Super", "GeForce RTX 4070 SUPER", "PCIe4", 56, 2.475, 12, 504, 48, 220),
    _gpu(_RTX40, "RTX4070Ti", "GeForce RTX 4070 Ti", "PCIe4", 60, 2.61, 12, 504, 48, 285),
    _gpu(_RTX40, "RTX4070Ti-Super", "GeForce RTX 4070 Ti SUPER", "PCIe4", 66, 2.61, 16, 672, 48, 285),
    _gpu(_RTX40, "RTX4080", "GeForce RTX 4080", "PCIe4", 76, 2.505, 16, 717, 64, 320),
    _gpu(_RTX40, "RTX4080Super", "GeForce RTX 4080 SUPER", "PCIe4", 80, 2.55, 16, 736, 64, 320),
    _gpu(_RTX40, "RTX4090", "GeForce RTX 4090", "PCIe4", 128, 2.52, 24, 1008, 72, 450),
    _gpu(_RTX40, "RTX4090-Laptop", "GeForce RTX 4090 Laptop GPU", "PCIe4", 76, 1.695, 16, 576, 64, 120),
    _gpu(_GH100, "H100", "H100 80GB HBM3", "NVLink4", 132, 1.98, 79.6, 3350, 50, 700, 1.83),
    _gpu(_GH100, "H100-PCIe", "H100 PCIe", "PCIe5", 114, 1.755, 79.6, 2039, 50, 350, 1.62),
    _gpu(_GH100, "H100-NVL", "H100 NVL", "NVLink bridge", 132, 1.785, 93.6, 3938, 60, 400, 1.545),
    _gpu(_GH100, "H800", "H800", "NVLink cut", 132, 1.98, 79.6, 3350, 50, 700, 1.83),
    _gpu(_GH100, "H200", "H200", "NVLink4", 132, 1.98, 140.4, 4800, 60, 700, 1.83),
    _gpu(_GH100, "H200-NVL", "H200 NVL", "NVLink4", 132, 1.785, 140.4, 4800, 60, 600, 1.545),
    _gpu(_GH100, "GH200", "GH200 480GB", "NVLink4", 132, 1.98, 95.6, 4000, 60, 900, 1.83),
    _gpu(_GB100, "B200", "B200", "NVLink5", 148, 1.965, 179, 8000, 126, 1000, 1.856),
    _gpu(_GB100, "GB200", "GB200", "NVLink5", 152, 2.062, 185, 8000, 126, 1200, 2.008),
    _gpu(_GB110, "B300", "B300 SXM6 AC", "NVLink5", 148, 2.032, 268.6, 8000, 126, 1100, 1.856),
    _gpu(_GB202, "RTXPRO6000-Server", f"{_PRO} Server Edition", "PCIe5", 188, 2.43, 95.6, 1597, 128, 600),
    _gpu(_GB202, "RTXPRO6000-Workstation", f"{_PRO} Workstation Edition", "PCIe5", 188, 2.617, 95.6, 1792, 128, 600),
    _gpu(_RTX50, "RTX5060", "GeForce RTX 5060", "PCIe5 x8", 30, 2.497, 8, 448, 32, 145),
    _gpu(_RTX50, "RTX5060Ti", "GeForce RTX 5060 Ti", "PCIe5 x8", 36, 2.572, 15.9, 448, 32, 180),
    _gpu(_RTX50, "RTX5070", "GeForce RTX 5070", "PCIe5", 48, 2.512, 11.9, 672, 48, 250),
    _gpu(_RTX50, "RTX5070Ti", "GeForce RTX 5070 Ti", "PCIe5", 70, 2.452, 15.9, 896, 48, 300),
    _gpu(_RTX50, "RTX5080", "GeForce RTX 5080", "PCIe5", 84, 2.617, 15.9, 960, 64, 360),
    _gpu(_RTX50, "RTX5090", "GeForce RTX 5090", "PCIe5", 170, 2.407, 31.8, 1792, 96, 575),
)
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
