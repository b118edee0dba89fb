"""The abilities a precision mode asks of a device: checked before a run, never replaced by something else."""

from dataclasses import dataclass

import torch

from ampsweep.config.schema import PrecisionConfig


@dataclass(frozen=True)
class Abilities:
    """The facts of a device that decide which precision modes it can run."""

    name: str
    """The device as a sentence names it."""
    tf32: bool
    bfloat16: bool
    autocast: bool


def missing_ability(config: PrecisionConfig, device: Abilities) -> str | None:
    """One sentence saying why a device with these abilities cannot run these settings, or None when it can."""
    if config.grad_scaler and config.parameters == "float16":
        return "a GradScaler cannot unscale float16 gradients; use amp_fp16"
    if config.tf32 and not device.tf32:
        return f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this device is {device.name}"
    if "bfloat16" in (config.parameters, config.dtype if config.autocast else "") and not device.bfloat16:
        return f"{device.name} has no bfloat16 arithmetic; use amp_fp16"
    if config.autocast and not device.autocast:
        return f"autocast is not available on {device.name}"
    return None


def abilities_of(device: torch.device) -> Abilities:
    """The abilities of a device that is here."""
    autocast = torch.amp.is_autocast_available(device.type)
    if device.type != "cuda":
        return Abilities(device.type, tf32=False, bfloat16=True, autocast=autocast)
    with torch.cuda.device(device):
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    tf32 = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return Abilities(torch.cuda.get_device_name(device), tf32=tf32, bfloat16=bfloat16, autocast=autocast)
