"""What a device can do: asked before a run, never replaced by something else."""

import torch

from ampsweep.config.schema import PrecisionConfig


def unsupported_reason(config: PrecisionConfig, device: torch.device) -> str | None:
    """One sentence saying why `device` cannot run these settings, or None when it can."""
    if config.grad_scaler and config.parameters == "float16":
        return "a GradScaler cannot unscale float16 gradients; use amp_fp16"
    if config.tf32:
        if device.type != "cuda":
            return f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later; this device is {device.type}"
        if torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
            return (
                f"tf32 needs an NVIDIA GPU of compute capability 8.0 or later, not {torch.cuda.get_device_name(device)}"
            )
    uses_bf16 = "bfloat16" in (config.parameters, config.dtype if config.autocast else "")
    if uses_bf16 and device.type == "cuda":
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic; use amp_fp16"
    if config.autocast and not torch.amp.is_autocast_available(device.type):
        return f"autocast is not available on {device.type}"
    return None
