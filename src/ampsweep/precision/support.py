"""The abilities that a precision mode needs of a device: checked before a run; a missing one is never worked around.

Which kernels a model needs is known only when it calls them: those without the mode's dtype are told by their errors.
"""

import re
from dataclasses import dataclass
from typing import Final

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.text import first_line

_NAMES_IN_ERRORS: Final = {"float16": "Half", "bfloat16": "BFloat16"}
_NO_PRIMITIVE: Final = re.compile(r"could not create a primitive(?: descriptor)?\b[^.]*")
"""oneDNN's error where it has no implementation; it does not say for which dtype."""


@dataclass(frozen=True)
class Abilities:
    """The facts of a device that decide which precision modes it can run."""

    name: str
    """The device's name in sentences."""
    tf32: bool
    bfloat16: bool
    autocast: bool


def missing_ability(config: PrecisionConfig, device: Abilities) -> str | None:
    """One sentence saying why a device with these abilities cannot run these settings, or None when it can."""
    if config.grad_scaler and config.parameters == "float16":
        return "a GradScaler cannot unscale float16 gradients; use amp_fp16"
    if config.fp32_modules and config.parameters != "float32":
        return f"fp32_modules needs parameters in float32, not in {config.parameters}; use amp_bf16 or amp_fp16"
    if config.tf32 and not device.tf32:
        return f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this device is {device.name}"
    if "bfloat16" in (config.parameters, config.dtype if config.autocast else "") and not device.bfloat16:
        return f"{device.name} has no bfloat16 arithmetic; use amp_fp16"
    if config.autocast and not device.autocast:
        return f"autocast is not available on {device.name}"
    return None


def abilities_of(device: torch.device) -> Abilities:
    """Find the abilities of a device of this machine."""
    autocast = torch.amp.is_autocast_available(device.type)
    if device.type != "cuda":
        return Abilities(device.type, tf32=False, bfloat16=True, autocast=autocast)
    with torch.cuda.device(device):
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    tf32 = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return Abilities(torch.cuda.get_device_name(device), tf32=tf32, bfloat16=bfloat16, autocast=autocast)


def refusal_by_kernel(error: BaseException, config: PrecisionConfig, device: str) -> str | None:
    """One sentence for the error of a kernel that does not compute in the mode's half precision; None for any other.

    A mode that computes in float32 alone is refused by none.
    """
    dtype = config.dtype if config.autocast else config.parameters
    if not isinstance(error, RuntimeError) or dtype not in _NAMES_IN_ERRORS:
        return None
    text, name = str(error), _NAMES_IN_ERRORS[dtype]
    told = _NO_PRIMITIVE.search(text) or re.search(
        rf"not implemented for '{name}'|dtypes not supported\. Got {name}\b|Unsupported dtype {name}\b", text
    )
    if told is None:
        return None
    what = told[0] if told.re is _NO_PRIMITIVE else first_line(text)
    return f"{device} cannot compute this model in {dtype}: {what}"
