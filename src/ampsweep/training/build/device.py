"""The device of a run."""

import torch

from ampsweep.config.errors import UserError


def resolve_device(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator that torch reports, else the CPU.

    An accelerator always gets its index, and becomes torch's current one: what torch looks up without naming a device,
    as autocast does for bfloat16, it looks up there, and no other device gets a context.

    Raises:
        UserError: torch does not know the device or does not see it here.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if accelerator is None else _current(accelerator.type, 0)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device={name}: torch knows no such device") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if accelerator is None or accelerator.type != device.type:
        raise UserError(f"device={name}: this machine has {'no accelerator' if accelerator is None else accelerator}")
    index = device.index or 0
    if index >= torch.accelerator.device_count():
        raise UserError(f"device={name}: this machine has {torch.accelerator.device_count()} of them, from 0")
    return _current(device.type, index)


def _current(kind: str, index: int) -> torch.device:
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)
