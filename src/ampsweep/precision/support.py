"""The abilities that a precision mode needs of a device; a mode is refused where one is missing."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from ampsweep.config.modes import step_dtypes, with_effect
from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.arithmetic import FLOAT32_BITS, matmul_bits
from ampsweep.text import first_line

INSTALLED_TORCH: Final = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))
_KERNELS: Final = {"high": "TF32 or bfloat16 kernels", "medium": "bfloat16 kernels"}
_NAMES_IN_ERRORS: Final = {"float16": "Half", "bfloat16": "BFloat16"}


class ModeUnavailableError(ValueError):
    """A mode cannot compute a model on this machine, but another mode may; the text is a sentence."""


@dataclass(frozen=True)
class Abilities:
    """The facts of a device that decide which precision modes it can run."""

    name: str
    tf32: bool
    bfloat16: bool
    autocast: bool
    matmul_bits: Callable[[str], int]
    """Mantissa bits that float32 matmuls keep under a setting of `precision.fp32_matmul`."""
    capability: tuple[int, int] | None = None
    """Compute capability of an NVIDIA GPU: (9, 0) is an H100."""


def missing_ability(config: PrecisionConfig, device: Abilities) -> str | None:
    """A sentence on why a device with these abilities cannot run these settings; None if it can."""
    if config.grad_scaler and step_dtypes(config).optimizer_state == "float16":
        return "a GradScaler cannot unscale float16 gradients; use amp_fp16"
    if config.fp32_modules and config.parameters != "float32":
        return f"fp32_modules needs parameters in float32, not in {config.parameters}; use amp_bf16 or amp_fp16"
    if config.tf32 and not device.tf32:
        return f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this device is {device.name}"
    if (reason := _missing_matmul(config, device)) is not None:
        return reason
    if "bfloat16" in (config.parameters, config.dtype if config.autocast else "") and not device.bfloat16:
        return f"{device.name} has no bfloat16 arithmetic; use amp_fp16"
    if config.autocast and not device.autocast:
        return f"autocast is not available on {device.name}"
    return None


def abilities_of(device: torch.device) -> Abilities:
    autocast = torch.amp.is_autocast_available(device.type)
    if device.type != "cuda":
        bits = partial(matmul_bits, device)
        return Abilities(device.type, tf32=False, bfloat16=True, autocast=autocast, matmul_bits=bits)
    with torch.cuda.device(device):
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    capability = None if torch.version.hip else torch.cuda.get_device_capability(device)
    tf32 = capability is not None and capability >= (8, 0)
    name, bits = torch.cuda.get_device_name(device), partial(cuda_matmul_bits, tf32)
    return Abilities(name, tf32=tf32, bfloat16=bfloat16, autocast=autocast, matmul_bits=bits, capability=capability)


def cuda_matmul_bits(tf32: bool, setting: str) -> int:
    """Bits that float32 matmuls keep on a CUDA device, by the docs of `torch.set_float32_matmul_precision`."""
    return 10 if tf32 and setting != "highest" else FLOAT32_BITS


def _missing_matmul(config: PrecisionConfig, device: Abilities) -> str | None:
    asked = with_effect(config).fp32_matmul
    if asked in (None, "highest"):  # no measurement is needed
        return None
    bits, without = device.matmul_bits(asked), f"{device.name} has no {_KERNELS[asked]} for float32 matmuls"
    if bits == device.matmul_bits("highest"):
        return f"fp32_matmul={asked} would round nothing: {without}"
    if asked == "medium" and bits == device.matmul_bits("high"):
        return f"fp32_matmul=medium would round as high does: {without}"
    return None


def refusal_by_kernel(error: BaseException, config: PrecisionConfig, device: str) -> str | None:
    """A sentence for the error of a kernel that lacks the mode's half-precision dtype; None for any other error."""
    dtype = config.dtype if config.autocast else config.parameters
    if not isinstance(error, RuntimeError) or dtype not in _NAMES_IN_ERRORS:
        return None
    text, name = str(error), _NAMES_IN_ERRORS[dtype]
    refusal = rf"not implemented for '{name}'|dtypes not supported\. Got {name}\b|Unsupported dtype {name}\b"
    if re.search(f"could not create a primitive|{refusal}", text) is None:  # the first is oneDNN's, of any dtype
        return None
    return f"{device} cannot compute this model in {dtype}: {first_line(text)}"
